/* Containers: `containers DIR calls` calls every function. `containers DIR storm NAME` writes files below NAME forever and prints which are
 * synced. `containers DIR child` (or `lone-child`) uses a container in a child of its parent. `containers DIR full` runs out of space. */
#include "tameike.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const tameike_agg_options any = {.rank = -1};
/* A single rank writes with threads. */
static const tameike_agg_options lone = {.rank = 0, .size = 1, .is_collective = 1};

static int fail(const char *what) {
    printf("not so: %s (%s)\n", what, tameike_agg_message());
    return 1;
}

#define SAY(condition) \
    if (!(condition)) return fail(#condition)

/* The size and content of each file depend on its number. */
static size_t size_of(unsigned number) { return number * 7919u % 60000; }

static void fill(char *bytes, unsigned number) {
    for (size_t at = 0; at < size_of(number); at++) bytes[at] = (char)((number * 31 + at) % 251);
}

static int storm(const char *dir, const char *name) {
    static char bytes[60000];
    tameike_agg *container;
    SAY(tameike_agg_initialize(dir, O_RDWR | O_CREAT, &any, &container) == 0);
    for (unsigned number = 0;; number++) {
        char path[64];
        tameike_agg_file *file;
        snprintf(path, sizeof path, "%s/%u", name, number);
        fill(bytes, number);
        SAY(tameike_agg_create(container, path, 0644, &file) == 0);
        SAY(tameike_agg_write(file, bytes, size_of(number)) == (ssize_t)size_of(number));
        SAY(tameike_agg_close(file) == 0);
        if (number % 4 == 3) {
            SAY(tameike_agg_sync(container) == 0);
            printf("%u\n", number);
            fflush(stdout);
        }
    }
}

static int files(tameike_agg *container) {
    char bytes[16] = "";
    tameike_agg_file *file, *again;
    tameike_status status;
    SAY(tameike_agg_create(container, "/a/b/file", 0664, &file) == 0);
    SAY(tameike_agg_write(file, "hello", 5) == 5);
    SAY(tameike_agg_pwrite(file, "!", 1, 7) == 1);
    SAY(tameike_agg_lseek(file, 0, SEEK_CUR) == 5 && tameike_agg_lseek(file, -2, SEEK_END) == 6);
    SAY(tameike_agg_read(file, bytes, 16) == 2 && memcmp(bytes, "\0!", 2) == 0);
    SAY(tameike_agg_lseek(file, -1, SEEK_SET) == -EINVAL && tameike_agg_lseek(file, 0, 99) == -EINVAL);
    SAY(tameike_agg_open(container, "a/b/file", O_WRONLY | O_APPEND, 0, &again) == 0);
    SAY(tameike_agg_write(again, "end", 3) == 3 && tameike_agg_read(again, bytes, 1) == -EBADF);
    SAY(tameike_agg_fstat(file, &status) == 0 && status.size == 11);
    SAY(tameike_agg_ftruncate(file, 10) == 0 && tameike_agg_close(again) == 0);
    SAY(tameike_agg_fsync(file) == 0 && tameike_agg_finalize(container) == -EBUSY);
    SAY(tameike_agg_close(file) == 0);
    SAY(tameike_agg_stat(container, "a/b/file", &status) == 0);
    SAY(status.size == 10 && status.mode == (S_IFREG | 0644) && status.uid == geteuid() && status.nlink == 1);
    SAY(tameike_agg_open(container, "a/b/file", O_RDONLY, 0, &file) == 0);
    SAY(tameike_agg_pread(file, bytes, 16, 0) == 10 && memcmp(bytes, "hello\0\0!en", 10) == 0);
    SAY(tameike_agg_write(file, "x", 1) == -EBADF && tameike_agg_close(file) == 0);
    return 0;
}

static int names(tameike_agg *container) {
    tameike_agg_file *file;
    tameike_agg_list *list;
    tameike_status status;
    const char *name;
    uint32_t kind;
    SAY(tameike_agg_mkdir(container, "a/dir", 0770) == 0 && tameike_agg_mkdir(container, "a", 0) == -EEXIST);
    SAY(tameike_agg_rename(container, "a/b", "c/d") == 0 && tameike_agg_stat(container, "c/d/file", &status) == 0);
    SAY(tameike_agg_rename(container, "c", "c/d/c") == -EINVAL && tameike_agg_rename(container, "c/d", "a/b") == 0);
    SAY(tameike_agg_rmdir(container, "c") == 0);
    SAY(tameike_agg_rename(container, "a/b/file", "a/moved") == 0);
    SAY(tameike_agg_opendir(container, "a", &list) == 0);
    SAY(tameike_agg_readdir(list, &name, &kind) == 1 && strcmp(name, "b") == 0 && kind == S_IFDIR);
    SAY(tameike_agg_readdir(list, &name, NULL) == 1 && strcmp(name, "dir") == 0);
    SAY(tameike_agg_readdir(list, &name, &kind) == 1 && strcmp(name, "moved") == 0 && kind == S_IFREG);
    SAY(tameike_agg_readdir(list, &name, &kind) == 0 && tameike_agg_closedir(list) == 0);
    SAY(tameike_agg_rmdir(container, "a") == -ENOTEMPTY && tameike_agg_rmdir(container, "a/b") == 0);
    SAY(tameike_agg_unlink(container, "a/moved") == 0 && tameike_agg_unlink(container, "a/moved") == -ENOENT);
    SAY(tameike_agg_stat(container, "a/moved", &status) == -ENOENT);
    SAY(tameike_agg_stat(container, "/", &status) == 0 && S_ISDIR(status.mode));
    SAY(tameike_agg_open(container, "a/dir", O_RDONLY, 0, &file) == -EISDIR);
    SAY(tameike_agg_open(container, "a/../x", O_RDWR | O_CREAT, 0600, &file) == -EINVAL);
    SAY(strstr(tameike_agg_message(), "a/../x") != NULL);
    return 0;
}

/* A process that finalizes reports what it has written to another one. */
static int reports(const char *dir) {
    tameike_agg_options one = {.rank = 0, .size = 2, .is_collective = 1}, other = {.rank = 1, .size = 2, .is_collective = 1};
    tameike_agg *first, *second;
    tameike_agg_file *file;
    tameike_status status;
    void *report;
    size_t size;
    SAY(tameike_agg_initialize(dir, O_RDWR, &one, &first) == 0 && tameike_agg_initialize(dir, O_RDWR, &other, &second) == 0);
    SAY(tameike_agg_create(second, "reported", 0600, &file) == 0);
    SAY(tameike_agg_finalize_reporting(second, &report, &size) == -EBUSY && report == NULL && size == 0);
    SAY(tameike_agg_close(file) == 0);
    SAY(tameike_agg_finalize_reporting(second, NULL, &size) == -EFAULT);
    SAY(tameike_agg_finalize_reporting(second, &report, &size) == 0 && report != NULL && size > 0);
    SAY(tameike_agg_take_report(first, NULL, size) == -EFAULT && tameike_agg_take_report(NULL, report, size) == -EFAULT);
    SAY(tameike_agg_take_report(first, report, size - 1) == -EINVAL && tameike_agg_take_report(first, "none", 4) == -EINVAL);
    SAY(tameike_agg_take_report(first, report, size) == 0);
    free(report);
    SAY(tameike_agg_finalize(first) == 0);
    SAY(tameike_agg_initialize(dir, O_RDONLY, NULL, &first) == 0);
    SAY(tameike_agg_stat(first, "reported", &status) == 0 && tameike_agg_finalize(first) == 0);
    SAY(tameike_agg_initialize(dir, O_RDONLY, NULL, &first) == 0);
    SAY(tameike_agg_finalize_reporting(first, &report, &size) == 0 && report == NULL && size == 0);
    return 0;
}

static int calls(const char *dir) {
    umask(022);
    char left[256];
    tameike_agg *container;
    tameike_agg_file *file;
    SAY(tameike_agg_initialize(dir, O_RDWR, &any, &container) == -ENOENT);
    SAY(tameike_agg_initialize(dir, O_RDWR | O_CREAT, NULL, &container) == 0);
    if (files(container) || names(container)) return 1;
    SAY(tameike_agg_sync(container) == 0 && tameike_agg_refresh(container) == 0);
    SAY(tameike_agg_create(container, "last", 0600, &file) == 0 && tameike_agg_close(file) == 0);
    SAY(tameike_agg_finalize(container) == 0);
    snprintf(left, sizeof left, "%s/index", dir);
    SAY(access(left, R_OK) == 0);
    SAY(tameike_agg_initialize(dir, O_RDONLY, NULL, &container) == 0);
    SAY(tameike_agg_create(container, "x", 0600, &file) == -EROFS);
    SAY(tameike_agg_open(container, "last", O_RDONLY, 0, &file) == 0 && tameike_agg_close(file) == 0);
    char known[4096] = {0};
    SAY(tameike_agg_known(NULL, known, sizeof known) == -EFAULT && tameike_agg_known(container, NULL, 1) == -EFAULT);
    ssize_t size = tameike_agg_known(container, NULL, 0);
    SAY(size > 0 && size < (ssize_t)sizeof known);
    SAY(tameike_agg_known(container, known, (size_t)size - 1) == size && known[0] == 0);
    SAY(tameike_agg_known(container, known, sizeof known) == size && memcmp(known, "TMKC", 4) == 0);
    SAY(tameike_agg_finalize(container) == 0);
    tameike_agg_options with_known = any;
    with_known.known_size = (size_t)size;
    SAY(tameike_agg_initialize(dir, O_RDONLY, &with_known, &container) == -EFAULT);
    with_known.known = known;
    SAY(tameike_agg_initialize(dir, O_RDONLY, &with_known, &container) == 0);
    SAY(tameike_agg_open(container, "last", O_RDONLY, 0, &file) == 0 && tameike_agg_close(file) == 0);
    SAY(tameike_agg_finalize(container) == 0);
    if (reports(dir)) return 1;
    SAY(tameike_agg_initialize(NULL, O_RDONLY, NULL, &container) == -EFAULT && tameike_agg_finalize(NULL) == -EFAULT);
    return 0;
}

static int child(const char *dir, const tameike_agg_options *how) {
    static char bytes[100000];
    tameike_agg *container, *own;
    tameike_agg_file *file;
    SAY(tameike_agg_initialize(dir, O_RDWR | O_CREAT, how, &container) == 0);
    SAY(tameike_agg_create(container, "large", 0600, &file) == 0);
    SAY(tameike_agg_write(file, bytes, sizeof bytes) == sizeof bytes && tameike_agg_close(file) == 0);
    SAY(tameike_agg_create(container, "parent", 0600, &file) == 0 && tameike_agg_write(file, "p", 1) == 1);
    pid_t made = fork();
    if (made == 0) {
        char byte;
        if (tameike_agg_pread(file, &byte, 1, 0) != -EIO) _exit(1);
        if (tameike_agg_close(file) != -EIO || tameike_agg_finalize(container) != -EIO) _exit(2);
        if (tameike_agg_initialize(dir, O_RDWR, &any, &own) != 0) _exit(3);
        if (tameike_agg_create(own, "child", 0600, &file) != 0 || tameike_agg_close(file) != 0) _exit(4);
        _exit(tameike_agg_finalize(own) == 0 ? 0 : 5);
    }
    int status;
    SAY(waitpid(made, &status, 0) == made && status == 0);
    SAY(tameike_agg_close(file) == 0);
    SAY(tameike_agg_open(container, "child", O_RDONLY, 0, &file) == 0 && tameike_agg_close(file) == 0);
    SAY(tameike_agg_finalize(container) == 0);
    return 0;
}

/* Limits the size of files. */
static int limit(size_t size) {
    struct rlimit files;
    SAY(getrlimit(RLIMIT_FSIZE, &files) == 0);
    files.rlim_cur = size;
    SAY(setrlimit(RLIMIT_FSIZE, &files) == 0);
    return 0;
}

/* Failed writes leave no file, and damage no other one. */
static int full(const char *dir) {
    enum { LARGE = 24 << 20, BLOCK = 16 << 20 };
    char *bytes = malloc(LARGE), *found = malloc(LARGE);
    memset(bytes, 7, LARGE);
    tameike_agg *container;
    tameike_agg_file *file;
    tameike_status status;
    const tameike_agg_options only = {.rank = 0, .size = 1, .block_size = BLOCK};
    SAY(tameike_agg_initialize(dir, O_RDWR | O_CREAT, &only, &container) == 0);
    SAY(tameike_agg_create(container, "before", 0600, &file) == 0 && tameike_agg_write(file, "b", 1) == 1);
    SAY(tameike_agg_close(file) == 0 && tameike_agg_sync(container) == 0);
    signal(SIGXFSZ, SIG_IGN);
    if (limit(BLOCK + (6 << 20))) return 1;
    SAY(tameike_agg_create(container, "failed", 0600, &file) == 0 && tameike_agg_write(file, bytes, LARGE) < 0);
    SAY(tameike_agg_fsync(file) < 0);
    if (limit(RLIM_INFINITY)) return 1;
    SAY(tameike_agg_close(file) == 0);
    SAY(tameike_agg_open(container, "failed", O_RDWR, 0, &file) == 0 && tameike_agg_fstat(file, &status) == 0 && status.size == 0);
    SAY(tameike_agg_write(file, bytes, LARGE) == LARGE && tameike_agg_close(file) == 0);
    SAY(tameike_agg_create(container, "after", 0600, &file) == 0 && tameike_agg_close(file) == 0);
    SAY(tameike_agg_finalize(container) == 0);
    SAY(tameike_agg_initialize(dir, O_RDONLY, &any, &container) == 0);
    SAY(tameike_agg_open(container, "before", O_RDONLY, 0, &file) == 0 && tameike_agg_close(file) == 0);
    SAY(tameike_agg_open(container, "after", O_RDONLY, 0, &file) == 0 && tameike_agg_close(file) == 0);
    SAY(tameike_agg_open(container, "failed", O_RDONLY, 0, &file) == 0);
    SAY(tameike_agg_read(file, found, LARGE) == LARGE && memcmp(bytes, found, LARGE) == 0);
    SAY(tameike_agg_close(file) == 0 && tameike_agg_finalize(container) == 0);
    return 0;
}

int main(int count, char **arguments) {
    if (count == 4 && strcmp(arguments[2], "storm") == 0) return storm(arguments[1], arguments[3]);
    if (count == 3 && strcmp(arguments[2], "calls") == 0) return calls(arguments[1]);
    if (count == 3 && strcmp(arguments[2], "child") == 0) return child(arguments[1], &any);
    if (count == 3 && strcmp(arguments[2], "full") == 0) return full(arguments[1]);
    if (count == 3 && strcmp(arguments[2], "lone-child") == 0) return child(arguments[1], &lone);
    return 2;
}
