/* Paths: absolute, relative, from descriptors of directories, through links and dots; umask and modes. */
#include "show.h"
#include <dirent.h>
#include <limits.h>
#include <sys/syscall.h>

static void mode_of(const char *path)
{
    struct stat st;
    if (lstat(path, &st) == 0)
        printf("%s: %o\n", path, st.st_mode);
    else
        printf("%s: %s\n", path, strerrorname_np(errno));
}

int main(void)
{
    char here[PATH_MAX], path[PATH_MAX + 32];
    limit();
    if (!getcwd(here, sizeof here))
        return 1;
    umask(027);
    SHOW(mkdir("d", 0777));
    mode_of("d");
    SHOW(close(open("d/f", O_CREAT | O_WRONLY, 0666)));
    mode_of("d/f");
    umask(0);
    SHOW(close(open("./d//g", O_CREAT | O_WRONLY, 0666)));
    mode_of("d/g");
    /* The absolute path is too long; its part below the view is not. */
    size_t length = strlen(here);
    memcpy(path, here, length);
    memset(path + length, '/', PATH_MAX - length);
    strcpy(path + PATH_MAX - 3, "d/f");
    SHOW(open(path, O_RDONLY));
    SHOW(close(open("d/read-only", O_CREAT | O_WRONLY, 0400)));
    mode_of("d/read-only");
    snprintf(path, sizeof path, "%s/d/../d/h", here);
    SHOW(close(open(path, O_CREAT | O_WRONLY, 0600)));
    snprintf(path, sizeof path, "%s//d/i", here);
    SHOW(close(open(path, O_CREAT | O_WRONLY, 0600)));
    int dir = SHOW(open("d", O_RDONLY | O_DIRECTORY));
    SHOW(close(openat(dir, "j", O_CREAT | O_WRONLY, 0600)));
    SHOW(mkdirat(dir, "e", 0700));
    SHOW(renameat(dir, "j", dir, "e/k"));
    SHOW(renameat2(dir, "e/k", AT_FDCWD, "d/f", RENAME_NOREPLACE));
    SHOW(renameat2(dir, "e/k", AT_FDCWD, "l", 0));
    SHOW(unlinkat(dir, "absent", 0));
    SHOW(unlinkat(dir, "e", 0));
    SHOW(unlinkat(dir, "e", AT_REMOVEDIR));
    SHOW(close(openat(dir, path, O_RDONLY)));
    SHOW(access("d", F_OK));
    SHOW(access("d", R_OK | W_OK | X_OK));
    SHOW(access("d/f", F_OK));
    SHOW(access("d/f", R_OK | W_OK));
    SHOW(access("d/f", X_OK));
    SHOW(access("d/f", 8));
    SHOW(access("d/f/", F_OK));
    SHOW(access("d/read-only", R_OK));
    SHOW(access("d/read-only", W_OK));
    SHOW(access("d/absent", F_OK));
    SHOW(access("absent/f", R_OK));
    SHOW(access("", F_OK));
    SHOW(access(NULL, F_OK));
    SHOW(eaccess("d/f", W_OK));
    SHOW(euidaccess("d/absent", W_OK));
    SHOW(faccessat(dir, "f", R_OK, 0));
    SHOW(faccessat(dir, "f", W_OK, AT_EACCESS));
    SHOW(faccessat(dir, "f", F_OK, AT_SYMLINK_NOFOLLOW));
    SHOW(faccessat(dir, "absent", F_OK, 0));
    SHOW(faccessat(-1, "f", F_OK, 0));
    SHOW(syscall(SYS_faccessat, dir, "f", R_OK));
    SHOW(syscall(SYS_faccessat2, dir, "f", R_OK, AT_EACCESS));
    SHOW(syscall(SYS_faccessat, dir, "absent", R_OK));
    SHOW(fchdir(dir));
    SHOW(close(open("m", O_CREAT | O_WRONLY, 0600)));
    SHOW(unlink("m"));
    SHOW(close(open("../n", O_CREAT | O_WRONLY, 0600)));
    SHOW(chdir(".."));
    SHOW(symlink("n", "to-n"));
    SHOW(symlink("d", "to-d"));
    SHOW(access("to-n", R_OK | W_OK));
    SHOW(access("to-d/f", R_OK));
    SHOW(faccessat(AT_FDCWD, "to-n", R_OK, AT_SYMLINK_NOFOLLOW));
    SHOW(close(open("to-n", O_WRONLY)));
    SHOW(open("to-n", O_WRONLY | O_NOFOLLOW));
    SHOW(close(open("to-d/f", O_RDONLY)));
    mode_of("to-n");
    SHOW(rename("to-n", "moved"));
    SHOW(rename("d", "dir"));
    SHOW(rename("n", "dir/n"));
    SHOW(rename("absent", "dir/n"));
    SHOW(chdir("/"));
    snprintf(path, sizeof path, "%s/dir/n", here);
    SHOW(close(open(path, O_RDONLY)));
    SHOW(unlink(path));
    SHOW(unlink(path));
    snprintf(path, sizeof path, "%s/dir", here);
    SHOW(unlink(path));
    SHOW(close(open("etc/passwd", O_RDONLY)));
    SHOW(chdir(here));
    SHOW(close(open("l", O_RDONLY)));
    SHOW(mkfifo("fifo", 0600));
    SHOW(close(open("fifo", O_RDWR)));
    SHOW(remove("fifo"));
    return 0;
}
