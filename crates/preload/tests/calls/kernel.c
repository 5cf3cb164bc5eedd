/* Calls that only the kernel can serve, each on a ring descriptor. */
#include "show.h"
#include <aio.h>
#include <dirent.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <dlfcn.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/xattr.h>

/* A file of ten digits, of which three have been read. */
static int fresh(void)
{
    char text[3];
    int fd = open("file", O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, "0123456789", 10) != 10 || lseek(fd, 0, SEEK_SET) || read(fd, text, 3) != 3)
        abort();
    return fd;
}

static void done(int fd)
{
    SHOW(lseek(fd, 0, SEEK_CUR));
    show_text(fd);
    close(fd);
}

static void descriptors(void)
{
    int fd = fresh();
    char *map = mmap(NULL, 10, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    map[1] = 'x';
    munmap(map, 10);
    done(fd);
    fd = fresh();
    int copy = SHOW(dup(fd));
    SHOW(lseek(copy, 5, SEEK_SET));
    close(copy);
    done(fd);
    fd = fresh();
    SHOW(dup2(fd, 9));
    SHOW(write(9, "y", 1));
    SHOW(dup2(fd, fd));
    SHOW(dup3(fd, 10, O_CLOEXEC));
    SHOW(fcntl(10, F_GETFD));
    SHOW(fcntl(fd, F_DUPFD, 20));
    SHOW(close_range(9, 20, 0));
    done(fd);
    fd = fresh();
    int other = open("other", O_RDWR | O_CREAT, 0600);
    SHOW(dup2(other, fd));
    SHOW(dup2(77, other));
    close(other);
    done(fd);
    fd = fresh();
    SHOW(flock(fd, LOCK_EX));
    struct flock lock = {.l_type = F_WRLCK};
    SHOW(fcntl(fd, F_SETLK, &lock));
    SHOW(lockf(fd, F_ULOCK, 0));
    done(fd);
    fd = fresh();
    SHOW(fallocate(fd, 0, 0, 20));
    SHOW(fchmod(fd, 0644));
    SHOW(futimens(fd, NULL));
    struct statfs fs;
    SHOW(fstatfs(fd, &fs));
    SHOW(fgetxattr(fd, "user.absent", NULL, 0));
    done(fd);
    fd = fresh();
    SHOW(fchdir(fd));
    SHOW(getpeername(fd, NULL, NULL));
    SHOW((long)fdopendir(fd));
    done(fd);
}

static void copies(void)
{
    int fd = fresh(), to = open("to", O_RDWR | O_CREAT | O_TRUNC, 0600), ends[2];
    SHOW(sendfile(to, fd, NULL, 2));
    SHOW(copy_file_range(fd, NULL, to, NULL, 2, 0));
    SHOW(lseek(to, 0, SEEK_CUR));
    done(fd);
    to = open("to", O_RDWR);
    fd = fresh();
    SHOW(pipe(ends));
    SHOW(splice(fd, NULL, ends[1], NULL, 4, 0));
    close(ends[0]);
    close(ends[1]);
    done(fd);
    fd = fresh();
    SHOW(posix_fallocate(fd, 0, -1));
    SHOW(posix_fallocate(fd, 0, 12));
    done(fd);
    fd = fresh();
    SHOW(ioctl(to, FICLONE, fd) == -1 && errno != EBADF);
    SHOW(ioctl(fd, FICLONE, to) == -1 && errno != EBADF);
    done(fd);
    fd = fresh();
    FILE *stream = fdopen(fd, "r+");
    printf("%c\n", fgetc(stream));
    fclose(stream);
    fd = fresh();
    SHOW(dprintf(fd, "%s %.2f %d %d %d %d %d %g", "text", 1.25, 1, 2, 3, 4, 5, 0.5));
    done(fd);
    fd = fresh();
    char text[4] = {0};
    struct aiocb call = {.aio_fildes = fd, .aio_buf = text, .aio_nbytes = 3, .aio_offset = 4};
    const struct aiocb *list[] = {&call};
    SHOW(aio_read(&call));
    aio_suspend(list, 1, NULL);
    SHOW(aio_return(&call));
    puts(text);
    done(fd);
}

static void waiting(void)
{
    int fd = fresh();
    struct pollfd polled = {.fd = fd, .events = POLLIN | POLLOUT};
    SHOW(poll(&polled, 1, 0));
    SHOW(polled.revents);
    done(fd);
    fd = fresh();
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval now = {0};
    SHOW(select(fd + 1, &set, NULL, NULL, &now));
    done(fd);
    fd = fresh();
    struct epoll_event event = {.events = EPOLLIN};
    int queue = epoll_create1(0);
    SHOW(epoll_ctl(queue, EPOLL_CTL_ADD, fd, &event));
    close(queue);
    done(fd);
}

static void links(void)
{
    struct stat st, own;
    char path[64], text[4096];
    int fd = fresh();
    fstat(fd, &own);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    SHOW(stat(path, &st));
    printf("same %d\n", st.st_ino == own.st_ino);
    int again = SHOW(open(path, O_RDONLY));
    SHOW(lseek(again, 0, SEEK_CUR));
    close(again);
    done(fd);
    fd = fresh();
    snprintf(path, sizeof path, "/dev/fd/%d", fd);
    ssize_t size = readlink(path, text, sizeof text);
    printf("%.5s\n", size > 5 ? text + size - 5 : "");
    done(fd);
    fd = fresh();
    snprintf(path, sizeof path, "/proc/%d/fd/%d", getpid(), fd);
    SHOW(truncate(path, 5));
    SHOW(chmod(path, 0640));
    done(fd);
    fd = fresh();
    SHOW(openat(fd, "below", O_RDONLY));
    SHOW(mkdirat(fd, "below", 0700));
    SHOW(unlinkat(fd, "below", 0));
    SHOW(faccessat(fd, "below", R_OK, 0));
    done(fd);
}

static void messages(void)
{
    int ends[2], fd = fresh();
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec byte = {"m", 1};
    struct msghdr message = {.msg_iov = &byte, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    SHOW(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    SHOW(sendmsg(ends[0], &message, 0));
    close(fd);
    char room[2];
    byte.iov_base = room;
    SHOW(recvmsg(ends[1], &message, 0));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    close(ends[0]);
    close(ends[1]);
    done(fd);
}

static void by_number(void)
{
    char text[4] = {0};
    struct stat st;
    int fd = fresh();
    SHOW(syscall(SYS_read, fd, text, 3));
    puts(text);
    SHOW(syscall(SYS_lseek, fd, 1, SEEK_CUR));
    SHOW(syscall(SYS_write, fd, "z", 1));
    SHOW(syscall(SYS_fallocate, fd, 0, 0, 12));
    SHOW(syscall(SYS_getpid) == getpid());
    done(fd);
    int (*old)(int, int, struct stat *) = (int (*)(int, int, struct stat *))dlsym(RTLD_DEFAULT, "__fxstat");
    fd = fresh();
#ifdef __x86_64__
    SHOW(old(1, fd, &st));
#else
    SHOW(old(0, fd, &st));
#endif
    printf("size %ld\n", (long)st.st_size);
    done(fd);
}

int main(void)
{
    limit();
    descriptors();
    copies();
    waiting();
    links();
    messages();
    by_number();
}
