/* Processes: inheritance by children, exec, and files at exit. */
#include "show.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/resource.h>

extern char **environ;

static void forked(void)
{
    char text[4] = {0};
    int fd = open("shared", O_RDWR | O_CREAT, 0600);
    SHOW(write(fd, "aaabbbcccddd", 12));
    SHOW(lseek(fd, 0, SEEK_SET));
    SHOW(read(fd, text, 3));
    pid_t child = fork();
    if (child == 0) {
        SHOW(read(fd, text, 3));
        puts(text);
        /* The child opens a file. */
        int own = SHOW(open("of-child", O_RDWR | O_CREAT, 0600));
        SHOW(write(own, "child\n", 6));
        SHOW(lseek(own, 1, SEEK_SET));
        fflush(stdout);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            SHOW(read(own, text, 3));
            puts(text);
            exit(3);
        }
        finish(grandchild);
        SHOW(lseek(own, 0, SEEK_CUR));
        fflush(stdout);
        _exit(0);
    }
    finish(child);
    SHOW(read(fd, text, 3));
    puts(text);
    SHOW(close(fd));
}

static void became_others(void)
{
    int fd = open("echoed", O_WRONLY | O_CREAT, 0600);
    SHOW(write(fd, "before\n", 7));
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 1);
        close(fd);
        execl("/bin/echo", "echo", "vforked", (char *)NULL);
        _exit(9);
    }
    finish(child);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    char *arguments[] = {"echo", "spawned", NULL};
    SHOW(posix_spawn(&child, "/bin/echo", &actions, NULL, arguments, environ));
    finish(child);
    SHOW(write(fd, "between\n", 8));
    SHOW(dup2(fd, 7));
    SHOW(system("echo of the shell >&7"));
    FILE *pipe = popen("cat >&7", "w");
    fputs("piped\n", pipe);
    SHOW(pclose(pipe));
    close(7);
    SHOW(write(fd, "after\n", 6));
    int in = open("echoed", O_RDONLY);
    show_text(in);
    close(fd);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        dup2(in, 0);
        execlp("cat", "cat", (char *)NULL);
    }
    finish(child);
    close(in);
    child = vfork();
    if (child == 0) {
        execl("/absent", "absent", (char *)NULL);
        _exit(errno == ENOENT ? 4 : 5);
    }
    finish(child);
}

static int stop;

/* Opens, writes and closes files while children close all descriptors. */
static void *busy(void *unused)
{
    long failed = 0;
    char text[8];
    do {
        int fd = open("busy", O_RDWR | O_CREAT | O_TRUNC, 0600);
        failed += fd < 0 || write(fd, "12345678", 8) != 8 || pread(fd, text, 8, 0) != 8 || close(fd) != 0;
    } while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST));
    return (void *)failed;
}

static void borrowed(void)
{
    pthread_t thread;
    void *failed;
    pthread_create(&thread, NULL, busy, NULL);
    for (int round = 0; round < 100; round++) {
        pid_t child = vfork();
        if (child == 0) {
            for (int fd = 3; fd < 64; fd++)
                close(fd);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
    pthread_join(thread, &failed);
    SHOW((long)failed);
}

static void limited(void)
{
    struct rlimit limit;
    int fd = open("limited", O_WRONLY | O_CREAT, 0600);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 4;
    SHOW(setrlimit(RLIMIT_FSIZE, &limit));
    signal(SIGXFSZ, SIG_IGN);
    SHOW(write(fd, "123456", 6));
    SHOW(write(fd, "789", 3));
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_FSIZE, &limit);
    SHOW(setuid(getuid()));
    SHOW(write(fd, "567", 3));
    SHOW(close(fd));
}

static int late;

static void at_exit(void) { SHOW(write(late, "written at exit\n", 16)); }

int main(void)
{
    limit();
    forked();
    became_others();
    borrowed();
    pid_t child = fork();
    if (child == 0) {
        limited();
        _exit(0);
    }
    finish(child);
    child = fork();
    if (child == 0) {
        int fd = open("left-open", O_WRONLY | O_CREAT, 0600);
        SHOW(write(fd, "left\n", 5));
        _exit(0);
    }
    finish(child);
    late = open("late", O_WRONLY | O_CREAT, 0600);
    SHOW(write(late, "early\n", 6));
    atexit(at_exit);
    return 0;
}
