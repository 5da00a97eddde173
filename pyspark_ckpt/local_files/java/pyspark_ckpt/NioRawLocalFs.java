package pyspark_ckpt;

import java.io.IOException;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.FsServerDefaults;
import org.apache.hadoop.fs.local.LocalConfigKeys;

/** What Hadoop's RawLocalFs is, without processes; {@link NioLocalFs} adds the checksum files. */
class NioRawLocalFs extends DelegateToFileSystem {
  NioRawLocalFs(Configuration conf) throws IOException, URISyntaxException {
    super(FsConstants.LOCAL_FS_URI, new NioLocalFileSystem(), conf, FsConstants.LOCAL_FS_URI.getScheme(), false);
  }

  @Override
  public int getUriDefaultPort() {
    return -1; // a file has no port
  }

  @Override
  public FsServerDefaults getServerDefaults(org.apache.hadoop.fs.Path path) throws IOException {
    return LocalConfigKeys.getServerDefaults();
  }

  @Override
  @Deprecated
  public FsServerDefaults getServerDefaults() throws IOException {
    return LocalConfigKeys.getServerDefaults();
  }

  @Override
  public boolean isValidName(String name) {
    return true; // the operating system says what it does not take
  }
}
