/* Calls that the ring serves, on one file, with their errors. */
#include "show.h"

static void data(void)
{
    char text[64] = {0};
    int fd = SHOW(open("file", O_RDWR | O_CREAT | O_EXCL, 0644));
    SHOW(write(fd, "one two three", 13));
    SHOW(lseek(fd, 4, SEEK_SET));
    SHOW(read(fd, text, 3));
    puts(text);
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(lseek(fd, -1, SEEK_CUR));
    SHOW(lseek(fd, -5, SEEK_END));
    SHOW(lseek(fd, -50, SEEK_END));
    SHOW(lseek(fd, 0, 17));
    SHOW(lseek(fd, 0, SEEK_HOLE));
    SHOW(lseek(fd, 0, SEEK_DATA));
    SHOW(lseek(fd, 100, SEEK_DATA));
    SHOW(pread(fd, text, 5, 8));
    SHOW(pread(fd, text, 5, 13));
    SHOW(pread(fd, text, 5, -1));
    SHOW(pwrite(fd, "TWO", 3, 4));
    SHOW(pwrite(fd, "x", 1, -1));
    struct iovec out[3] = {{"a", 1}, {"", 0}, {"bc", 2}};
    SHOW(lseek(fd, 0, SEEK_END));
    SHOW(writev(fd, out, 3));
    int minus_one = -1;
    SHOW(writev(fd, out, minus_one));
    SHOW(writev(fd, out, 0));
    char left[4] = {0}, right[8] = {0};
    struct iovec in[2] = {{left, 3}, {right, 7}};
    SHOW(preadv(fd, in, 2, 0));
    printf("%s|%s\n", left, right);
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(readv(fd, in, 2));
    SHOW(preadv2(fd, in, 2, -1, 0));
    SHOW(pwritev2(fd, out, 3, 30, 0));
    SHOW(pwritev2(fd, out, 3, -1, RWF_APPEND));
    show_text(fd);
    SHOW(close(fd));
    SHOW(close(fd));
    SHOW(read(fd, text, 1));
}

static void sizes(void)
{
    struct stat st;
    int fd = SHOW(open("file", O_RDWR));
    SHOW(fstat(fd, &st));
    printf("size %ld mode %o links %ld\n", (long)st.st_size, st.st_mode, (long)st.st_nlink);
    SHOW(ftruncate(fd, 3));
    SHOW(ftruncate(fd, -3));
    SHOW(fsync(fd));
    SHOW(fdatasync(fd));
    SHOW(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
    SHOW(posix_fadvise(fd, 0, 0, 77));
    SHOW(stat("file", &st));
    printf("size %ld\n", (long)st.st_size);
    struct stat other;
    SHOW(lstat("file", &other));
    printf("same file %d\n", st.st_dev == other.st_dev && st.st_ino == other.st_ino);
    struct statx x;
    SHOW(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &x));
    printf("size %ld mode %o\n", (long)x.stx_size, x.stx_mode);
    SHOW(statx(AT_FDCWD, "file", 0, STATX_SIZE, &x));
    SHOW(fstatat(fd, "", &st, AT_EMPTY_PATH));
    SHOW(fstatat(fd, "file", &st, 0));
    SHOW(fstatat(AT_FDCWD, "file", &st, 0x8000000));
    SHOW(isatty(fd));
    SHOW(close(fd));
}

static void flags(void)
{
    int fd = SHOW(open("file", O_WRONLY | O_APPEND | O_CREAT, 0600));
    SHOW(fcntl(fd, F_GETFL));
    SHOW(fcntl(fd, F_GETFD));
    SHOW(fcntl(fd, F_SETFD, FD_CLOEXEC));
    SHOW(fcntl(fd, F_GETFD));
    SHOW(fcntl(fd, F_SETFL, O_APPEND));
    char text[4];
    SHOW(read(fd, text, 1));
    SHOW(pread(fd, text, 1, 0));
    SHOW(write(fd, "end", 3));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(pwrite(fd, "END", 3, 0));
    SHOW(fcntl(fd, F_SETFL, 0));
    SHOW(fcntl(fd, F_GETFL));
    SHOW(pwrite(fd, "B", 1, 0));
    SHOW(close(fd));
    fd = SHOW(open("file", O_RDONLY));
    show_text(fd);
    SHOW(write(fd, "x", 1));
    SHOW(ftruncate(fd, 0));
    SHOW(close(fd));
    fd = SHOW(open("file", O_WRONLY | O_TRUNC));
    SHOW(lseek(fd, 0, SEEK_END));
    SHOW(close(fd));
    SHOW(close(creat("made", 0640)));
}

static void failures(void)
{
    char text[8];
    int fd = SHOW(open("file", O_RDWR));
    SHOW(write(fd, "1234", 4));
    SHOW(pread(fd, NULL, 4, 0));
    SHOW(pread(fd, (char *)-1, 4, 0));
    SHOW(write(fd, NULL, 4));
    SHOW(write(fd, NULL, 0));
    SHOW(close(fd));
    SHOW(open("file", O_RDWR | O_CREAT | O_EXCL, 0600));
    SHOW(open("absent", O_RDWR));
    SHOW(open("file/below", O_RDWR));
    SHOW(open("absent/below", O_RDWR | O_CREAT, 0600));
    SHOW(open("", O_RDWR));
    SHOW(open(NULL, O_RDWR));
    SHOW(open((char *)-1, O_RDWR));
    char name[400];
    memset(name, 'n', sizeof name);
    name[300] = 0;
    SHOW(open(name, O_RDWR | O_CREAT, 0600));
    SHOW(open(".", O_RDWR));
    SHOW(read(-1, text, 1));
    SHOW(close(-1));
    SHOW(lseek(12345, 0, SEEK_SET));
    SHOW(openat(-7, "file", O_RDONLY));
    SHOW(unlink("absent"));
    SHOW(mkdir("file", 0755));
}

int main(void)
{
    limit();
    data();
    sizes();
    flags();
    failures();
}
