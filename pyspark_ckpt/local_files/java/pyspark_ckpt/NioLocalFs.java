package pyspark_ckpt;

import java.io.IOException;
import java.net.URI;
import java.net.URISyntaxException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;

/** Local files with Hadoop's checksum files; what Hadoop's LocalFs is, without processes. */
public class NioLocalFs extends ChecksumFs {
  public NioLocalFs(Configuration conf) throws IOException, URISyntaxException {
    super(new NioRawLocalFs(conf));
  }

  public NioLocalFs(URI uri, Configuration conf) throws IOException, URISyntaxException {
    this(conf);
  }
}
