/* Prints a call, its result, and errno if it failed. Runs with and without the library must print the same. */
#ifndef SHOW_H
#define SHOW_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SHOW(call) show(#call, (errno = 0, (long)(call)))

static inline long show(const char *call, long result)
{
    int error = errno;
    if (result == -1)
        printf("%s = -1 %s\n", call, strerrorname_np(error));
    else
        printf("%s = %ld\n", call, result);
    fflush(stdout);
    return result;
}

static inline void show_text(int fd)
{
    char text[256];
    ssize_t count = pread(fd, text, sizeof text, 0);
    printf("content of %zd: %.*s\n", count, count < 0 ? 0 : (int)count, text);
    fflush(stdout);
}

static inline void finish(pid_t child)
{
    int status = -1;
    waitpid(child, &status, 0);
    printf("child ended with %d\n", status);
    fflush(stdout);
}

/* A deadlock ends with a signal. */
static inline void limit(void) { alarm(60); }
#endif
