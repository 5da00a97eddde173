package pyspark_ckpt;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.util.EnumSet;
import java.util.Set;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, which asks Java for what it else asks a process of its own for.
 *
 * <p>Without Hadoop's native library, Hadoop starts {@code chmod} for each file and directory that
 * it makes, and {@code readlink} for each file that it renames. Everything else is Hadoop's code.
 */
public class NioLocalFileSystem extends RawLocalFileSystem {
  /** The permissions of POSIX, the one of the highest bit first. */
  private static final PosixFilePermission[] BITS = {
    PosixFilePermission.OWNER_READ, PosixFilePermission.OWNER_WRITE, PosixFilePermission.OWNER_EXECUTE,
    PosixFilePermission.GROUP_READ, PosixFilePermission.GROUP_WRITE, PosixFilePermission.GROUP_EXECUTE,
    PosixFilePermission.OTHERS_READ, PosixFilePermission.OTHERS_WRITE, PosixFilePermission.OTHERS_EXECUTE,
  };

  @Override
  public void setPermission(org.apache.hadoop.fs.Path path, FsPermission permission) throws IOException {
    Path file = pathToFile(path).toPath();
    boolean isPosix = file.getFileSystem().supportedFileAttributeViews().contains("posix");
    if (!isPosix || permission.getStickyBit()) {
      super.setPermission(path, permission); // Java has no name for the sticky bit
      return;
    }
    Set<PosixFilePermission> set = EnumSet.noneOf(PosixFilePermission.class);
    int mode = permission.toShort();
    for (int place = 0; place < BITS.length; place++) {
      if ((mode >> (BITS.length - 1 - place) & 1) == 1) {
        set.add(BITS[place]);
      }
    }
    try {
      Files.setPosixFilePermissions(file, set);
    } catch (NoSuchFileException e) {
      throw (IOException) new FileNotFoundException(path.toString()).initCause(e);
    }
  }

  @Override
  public FileStatus getFileLinkStatus(org.apache.hadoop.fs.Path path) throws IOException {
    if (Files.isSymbolicLink(pathToFile(path).toPath())) {
      return super.getFileLinkStatus(path);
    }
    return getFileStatus(path);
  }
}
