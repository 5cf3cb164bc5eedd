//! Unmodified programs: their output and files must be the same with and without the library.

use crate::directory::{Bed, run};

/// Runs `script` in bash, in a plain directory without the library, and in the view with it, where it must make more than `requests_min`
/// requests.
fn compare(script: &str, requests_min: u64) {
    for declines_each in [0, 9] {
        let bed = Bed::new(declines_each);
        let script = format!("set -eu; export LC_ALL=C; exec 2>&1; {script}");
        let expected = run(bed.without("bash").args(["-c", &script]));
        assert!(expected.ends_with("exit status: 0"), "without the library: {expected}");
        bed.compare(&run(bed.with_ring("bash").args(["-c", &script])), &expected, requests_min);
    }
}

#[test]
fn coreutils() {
    compare(
        "mkdir -p a/b; seq 100000 >numbers; cp numbers a/copy; cp --sparse=always --reflink=never numbers a/sparse
        dd if=numbers of=a/b/dd bs=1000 count=50 skip=3 seek=2 status=none; dd if=/dev/zero of=a/b/dd bs=1 seek=9 \\
            count=5 conv=notrunc status=none; truncate -s 1M a/long; cat numbers a/copy >>a/long; split -n 7 numbers part-
        sort -r numbers -o sorted; head -c 77 numbers | tee a/tee | wc -c; cmp numbers a/copy; md5sum part-* a/* a/b/* || :
        tail -n 3 sorted; install -m 640 numbers installed; mv sorted a/b/moved; mv part-aa part-ab a; rm part-a[c-d]
        ln installed hard; ln -s a/copy soft; cat soft >through; stat -c '%n %s %a %h' * a/*; rm -r a/b; shred -n 1 hard
        test -s hard; rm hard installed",
        100,
    );
}

#[test]
fn archives() {
    compare(
        "mkdir from; for i in $(seq 60); do seq $i 7 2000 >from/$i; done; touch -d @1000000000 from from/*
        tar --create --sort=name --file all.tar from; tar --list --file all.tar | wc -l; mkdir to; tar -x -f all.tar -C to
        diff -r from to/from; tar -czf all.tgz from; tar -xOzf all.tgz from/7 | md5sum; xz -k all.tar; xz -t all.tar.xz
        rsync -a from/ again; echo changed >>from/3; rsync -ai --no-whole-file --inplace from/ again | grep -c ^; diff -r from again
        rm all.*",
        1000,
    );
}

#[test]
fn shells() {
    compare(
        "for i in $(seq 50); do echo line $i >>log; echo $i >number-$((i % 3)); done; while read -r a b; do echo \"$b\"; done <log \\
            | md5sum; exec 7<>both; echo written >&7; cat both; read -r -u 7 nothing || echo end; exec 7>&-
        (echo in a subshell; cat <<<here) >sub; { echo one; /bin/echo two; (echo three); } >group; cat group sub
        cat < <(cat log) | tail -n 1; mapfile -t lines <log; echo ${#lines[@]}; set -o noclobber; ! echo no >log; printf x >|log
        cat log; awk '{ print > (\"awk-\" NR % 2) } END { print NR }' group; sed -i s/one/ONE/ group; cat group awk-*
        find . -name 'number-*' -size -2 -newer both | sort; perl -e 'open F, \"+>\", \"perl\"; print F \"x\" x 9999; seek F, 5, 0;
            read F, $b, 3; print \"$b \", -s F, \"\\n\"; truncate F, 100; close F; rename \"perl\", \"p\"; print -s \"p\", \"\\n\"'",
        100,
    );
}

#[test]
fn python() {
    const PROGRAM: &str = r#"
import mmap, multiprocessing, os, shutil, subprocess, tempfile, threading

def work(number):
    with open(f"of-{number}", "w+b", buffering=0) as file:
        for at in range(50):
            file.write(bytes([number]) * 100)
        file.seek(10)
        return len(file.read()), os.fstat(file.fileno()).st_size

if __name__ == "__main__":
    shared = open("shared", "w+b", buffering=0)
    shared.write(b"0123456789" * 100)
    for method in "fork", "spawn", "forkserver":
        with multiprocessing.get_context(method).Pool(3) as pool:
            print(method, pool.map(work, range(6)))
    mapped = mmap.mmap(shared.fileno(), 1000)
    mapped[0:3] = b"MAP"
    mapped.close()
    shared.seek(0)
    print(shared.read(5))
    with open("out", "w") as out:
        subprocess.run(["echo", "from a child"], stdout=out, check=True)
        out.write("and after\n")
    print(open("out").read(), subprocess.check_output(["wc", "-c", "shared"]))
    def append(name):
        for at in range(200):
            with open("appended", "a") as file:
                file.write(f"{name} {at}\n")
    threads = [threading.Thread(target=append, args=[name]) for name in "abc"]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(len(set(open("appended").readlines())))
    os.remove("appended")
    shutil.copyfile("shared", "copied")
    os.makedirs("d/e")
    shutil.move("copied", "d/e/moved")
    print(sorted(os.walk(".")))
    if (child := os.fork()) == 0:
        shared.write(b"of the child")
        os._exit(0)
    os.waitpid(child, 0)
    print(shared.tell())
    with tempfile.NamedTemporaryFile(dir=".") as file:
        file.write(b"x" * 100)
        file.flush()
        print(os.stat(file.name).st_size)
"#;
    compare(&format!("cat >program.py <<'END'\n{PROGRAM}\nEND\npython3 -B program.py"), 500);
}

#[test]
fn git() {
    compare(
        "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_DATE=\"1000000001 +0000\" GIT_COMMITTER_DATE=\"1000000002 +0000\" GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=b \\
            GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=d; git init -q -b main repo; cd repo; for i in $(seq 30); do seq $i 999 >f$i; done
        git add .; git commit -qm first; git checkout -qb side; echo side >>f1; git commit -qam side; git checkout -q main
        echo main >f2; git commit -qam main; git merge -qm merge side; git log --format=%H%s; git gc -q; git fsck --strict
        git clone -q . ../clone; git -C ../clone status --short; diff -r -x .git . ../clone; rm -rf .git ../clone/.git",
        300,
    );
}

#[test]
fn databases() {
    compare(
        "sqlite3 db 'create table t (a integer primary key, b text); begin; with recursive n(i) as (select 1 union all select i + 1 from n
            where i < 2000) insert into t select i, hex(i * i) from n; commit; select count(*), sum(length(b)) from t'
        sqlite3 db 'update t set b = b || b where a % 3 = 0; delete from t where a % 5 = 0; vacuum; pragma integrity_check'
        sqlite3 wal 'pragma journal_mode = wal; create table t (a); insert into t values (1), (2); select sum(a) from t'
        sqlite3 db .dump | md5sum; rm db wal*",
        10,
    );
}

/// fio verifies what it has written.
#[test]
fn fio() {
    let engines = "psync pvsync mmap";
    compare(
        &format!(
            "for engine in {engines}; do fio --name=$engine --ioengine=$engine --rw=randrw --bs=3k --size=300k --verify=crc32c \\
            --do_verify=1 --fallocate=none --allow_file_create=1 --randseed=7 --output=/dev/null --thread; done
            ls -s | wc -l; rm -f *"
        ),
        20,
    );
}
