//! Scripts of unchanged programs, and what lies there after them.

/// What lies below a directory: names, kinds, modes, sizes and sums.
pub const LISTING: &str = r"find . -printf '%P %y %m %n ' -a \( -type f -printf '%s\n' -o -printf '\n' \) | sort
    find . -type f -print0 | sort -z | xargs -0 sha256sum";

/// Small tools, in a shell.
pub const COREUTILS: &str = "umask 022; seq 20000 > numbers; cp numbers copy; mkdir -p a/b; cat numbers copy >> a/both; wc -c < a/both
         head -c 1000 numbers > a/b/head; tail -c +500 a/b/head | md5sum; mv a/b/head a/head; rm copy
         dd if=numbers of=a/dd bs=777 count=20 seek=3 conv=notrunc status=none; truncate -s 5000 a/dd
         sort -r numbers -o sorted; ln sorted hard; ln -s a/dd soft; cmp sorted hard; test -s soft; chmod 640 sorted
         split -n 5 numbers part-; cat part-* | cmp - numbers; stat -c '%s %a %h' numbers sorted; test ! -e none";

/// tar, gzip and git.
pub const ARCHIVES: &str = "umask 022; export HOME=$PWD GIT_CONFIG_NOSYSTEM=1
         mkdir src; for i in $(seq 60); do seq $i $((i * 50)) > src/file-$i; done
         tar -cf all.tar --sort=name --mtime=@0 --owner=0 --group=0 src; mkdir out; tar -xf all.tar -C out; diff -r src out/src
         rm -r out; gzip -n all.tar; gzip -dk all.tar.gz; rm all.tar
         git init -q repo; cp src/* repo; cd repo; git add .; GIT_AUTHOR_DATE='1000000000 +0000' GIT_COMMITTER_DATE='1000000000 +0000' \\
             git -c user.name=a -c user.email=b commit -qm one; git fsck --strict; git status --short; git log --oneline; cd ..
         rm -rf repo";

/// Python with mmap, fork and SQLite.
pub const PYTHON: &str = r#"umask 022; python3 - <<'PYTHON'
import os, mmap, sqlite3
with open("data", "wb") as out:
    for number in range(300):
        out.write(bytes([number % 256]) * 7001)
fd = os.open("data", os.O_RDWR)
os.pwrite(fd, b"here", 1 << 20)
mapped = mmap.mmap(fd, 0)
assert mapped[1 << 20:(1 << 20) + 4] == b"here"
mapped[5:9] = b"mmap"
mapped.flush()
assert os.pread(fd, 4, 5) == b"mmap"
if os.fork() == 0:
    os.write(fd, b"child")
    os._exit(0)
os.wait()
assert os.lseek(fd, 0, os.SEEK_CUR) == 5
os.close(fd)
with open("log", "a") as log:
    for number in range(50):
        print(number, file=log, flush=True)
    assert log.tell() == os.path.getsize("log")
base = sqlite3.connect("base")
base.execute("create table t (a integer primary key, b text)")
with base:
    base.executemany("insert into t values (?, ?)", ((n, str(n) * 20) for n in range(2000)))
assert base.execute("pragma integrity_check").fetchone() == ("ok",)
base.close()
PYTHON
        rm base"#;
