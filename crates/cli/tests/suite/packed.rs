//! Packing of small files of the cache view, in real jobs.

use crate::support::jobs::{Background, new_job};
use crate::support::{
    Run, Site, assert_contains, binary, files_below, is_root, json, out, shown, succeed, utf8,
};
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::PathBuf;
use std::process::Command;

const INCOMPLETE: i32 = 75;

/// The container of packed files.
fn container(site: &Site) -> PathBuf {
    site.shared().join(".tameike-packed")
}

/// Runs a job that packs and must succeed; returns its output.
fn pack(site: &Site, nodes: u32, script: &str) -> String {
    succeed(&mut site.job(nodes, &["--aggregate", "--verify"], script))
}

/// Files of the shared directory outside of the container, sorted.
fn plain_files(site: &Site) -> Vec<PathBuf> {
    let mut files = files_below(site.shared());
    files.retain(|path| path.is_file() && !path.starts_with(container(site)));
    files.sort();
    files
}

fn verify(site: &Site) -> String {
    succeed(Command::new(binary()).args(["agg", "verify"]).arg(container(site)))
}

/// S33a, S33b, S33c, S33d, S33e, S33f, S33g.
#[test]
fn packed_files_are_files_to_this_job_and_to_later_ones() {
    let site = Site::new();
    pack(
        &site,
        2,
        r#"cd "$TAMEIKE_CACHE"; mkdir -p d/sub
           for i in $(seq 200); do echo "file $i" > d/sub/f$i; done
           tameike exec --all -- sh -euc 'cd "$TAMEIKE_CACHE/d/sub"
               test $(ls | wc -l) = 200; for i in $(seq 200); do test "$(cat f$i)" = "file $i"; done
               for i in $(seq 50); do echo "$TAMEIKE_NODE $i" > ../by-$TAMEIKE_NODE-$i; done'
           test $(ls d | wc -l) = 101
           mv d/sub/f1 d/renamed; rm d/sub/f2; echo more >> d/sub/f3; echo other > d/sub/f4; chmod 751 d/sub/f5
           touch -d 2001-02-03T04:05:06Z d/sub/f6; truncate -s 3 d/sub/f7; mv -f d/sub/f8 d/sub/f9
           test ! -e d/sub/f1; test ! -e d/sub/f8; test "$(stat -c %a d/sub/f5)" = 751
           ls -a | grep tameike-packed && exit 1 || true
           rmdir d/sub && exit 1 || true
           ln d/sub/f10 d/link && exit 1 || true
           python3 - <<'END'
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
assert libc.renameat2(-100, b"d/sub/f10", -100, b"d/sub/f12", 2) == -1 and ctypes.get_errno() == errno.EINVAL
try:
    os.setxattr("d/sub/f10", "user.x", b"1")
    raise SystemExit("it has an attribute")
except OSError as error:
    assert error.errno == errno.EOPNOTSUPP, error
assert os.listxattr("d/sub/f10") == []
with open("d/sub/f13", "r+b") as file:
    file.truncate(9000)
assert open("d/sub/f13", "rb").read() == b"file 13\n" + bytes(8992)
END
           mv d e; test "$(cat e/renamed)" = "file 1""#,
    );
    assert_eq!(plain_files(&site), Vec::<PathBuf>::new(), "all are packed");
    let later = succeed(&mut site.job(
        2,
        &[],
        r#"cd "$TAMEIKE_CACHE/e"; test $(ls sub | wc -l) = 197; cat sub/f3 sub/f4 sub/f7 sub/f9 renamed by-1-50
           stat -c '%a' sub/f5; stat -c '%Y' sub/f6; tar cf - . | tar tf - | wc -l; echo new > sub/new; rm sub/f11"#,
    ));
    assert_eq!(later, "file 3\nmore\nother\nfilfile 8\nfile 1\n1 50\n751\n981173106\n300\n");
    assert_eq!(plain_files(&site), [site.shared().join("e/sub/new")]);
    verify(&site);
}

/// S34a.
#[test]
fn the_receipt_has_checksums_of_packed_files() {
    let site = Site::new();
    let receipt = site.plain().join("receipt");
    let options = ["--aggregate", "--verify", "--receipt", utf8(&receipt)];
    let script = r#"cd "$TAMEIKE_CACHE"; printf abc > small; head -c 900000 /dev/zero > large
                    dd if=/dev/zero of=synced bs=5000 count=1 conv=fsync status=none; rm large"#;
    succeed(&mut site.job(2, &options, script));
    let receipt = json(&receipt);
    let files = receipt["files"].as_array().expect("files");
    let outcomes: Vec<_> =
        files.iter().map(|file| (file["path"].as_str(), file["outcome"].as_str())).collect();
    assert_eq!(outcomes, [(Some("small"), Some("verified")), (Some("synced"), Some("verified"))]);
    // As `b3sum` prints it.
    let sum = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85";
    assert_eq!(files[0]["checksum"], sum);
    assert!(verify(&site).contains("verified 2 paths"), "{}", verify(&site));
}

/// S35a.
#[test]
fn files_that_have_grown_large_are_promoted_when_the_job_ends() {
    let site = Site::new();
    let script = r#"cd "$TAMEIKE_CACHE"; mkdir d; head -c 3000000 /dev/urandom > d/large; head -c 1000 d/large > d/small
                    cksum < d/large; chmod 640 d/large; mkdir of-group; chgrp 5 of-group; chmod 2775 of-group
                    head -c 2000000 d/large > of-group/given; cp of-group/given of-group/kept; chgrp 0 of-group/given"#;
    let sum = pack(&site, 2, script);
    let large = ["d/large", "of-group/given", "of-group/kept"];
    assert_eq!(plain_files(&site), large.map(|name| site.shared().join(name)));
    let groups = Command::new("stat").args(["-c", "%g"]).args(large).current_dir(site.shared()).output();
    assert_eq!(groups.expect("stat").stdout, b"0\n0\n5\n");
    assert_eq!(
        succeed(Command::new("cksum").stdin(fs::File::open(site.shared().join("d/large")).expect("there"))),
        sum
    );
    assert_eq!(succeed(Command::new("stat").args(["-c", "%a"]).arg(site.shared().join("d/large"))), "640\n");
    let container = container(&site);
    let script = format!(
        r#"cd "$TAMEIKE_CACHE"; ls d; cksum < d/large; cp d/large d/copy; until ls {0} | grep -q '^out\.'; do sleep 0.1; done
           tameike exec --node 1 -- cksum < d/copy"#,
        container.display()
    );
    assert_eq!(pack(&site, 2, &script), format!("large\nsmall\n{sum}{sum}"));
    assert_eq!(fs::read(site.shared().join("d/copy")).expect("there").len(), 3_000_000);
    assert!(
        fs::read_dir(container).expect("there").all(|name| !name
            .expect("a name")
            .file_name()
            .to_string_lossy()
            .starts_with("out"))
    );
}

/// Another program has removed the directory of an external file: `recover` promotes it once the directory exists, and finds files
/// that were promoted before.
#[test]
fn a_large_file_whose_directory_was_removed_is_recovered() {
    let (site, job) = new_job("gone");
    let script = format!(
        r#"cd "$TAMEIKE_CACHE"; mkdir d; for i in 1 d/2 3; do head -c 2000000 /dev/urandom > $i; done; cksum 1 d/2 3
           until test $(ls {0}/.tameike-packed | grep -c '^out\.') = 3; do sleep 0.1; done; rmdir {0}/d"#,
        site.shared().display()
    );
    let options = ["--job", &job.name, "--aggregate", "--verify"];
    let output = site.job(2, &options, &script).exits(INCOMPLETE);
    assert_contains(&shown(&output), &["d/2: ", "ENOENT"]);
    let mut recover = site.tameike(&["recover", "--job", &job.name]);
    recover.exits(INCOMPLETE);
    fs::create_dir(site.shared().join("d")).expect("made");
    recover.exits(0);
    let found = succeed(Command::new("cksum").args(["1", "d/2", "3"]).current_dir(site.shared()));
    assert_eq!(found, out(&output));
}

/// S36a.
#[test]
fn the_attribute_of_a_directory_turns_packing_on_or_off() {
    let site = Site::new();
    let script = r#"cd "$TAMEIKE_CACHE"; mkdir -p first/not other; tameike layout set --aggregate first; mv first yes
                    tameike layout set --aggregate=off yes/not
                    echo 1 > yes/a; echo 2 > yes/not/b; echo 3 > other/c; mv yes/a other/a; mv other/c yes/c"#;
    succeed(&mut site.job(2, &["--aggregate=auto"], script));
    assert_eq!(plain_files(&site), [site.shared().join("yes/c"), site.shared().join("yes/not/b")]);
    assert_eq!(pack(&site, 1, r#"cd "$TAMEIKE_CACHE"; cat other/a yes/c yes/not/b"#), "1\n3\n2\n");
    let site = Site::new();
    site.run(1, r#"tameike layout set --aggregate "$TAMEIKE_CACHE" 2>&1 && exit 1 || true"#);
}

/// S37a, S37b.
#[test]
fn storms_are_reported_and_packed() {
    let site = Site::new();
    let script = r#"mkdir "$TAMEIKE_CACHE/d"; cd "$TAMEIKE_CACHE/d"; for i in $(seq 200); do echo $i > f$i; done; tameike status"#;
    let text = shown(&site.job(1, &[], script).exits(0));
    let storm =
        "many files were created within seconds in d: packing 200 of them (--aggregate=auto) would save";
    // Once in `tameike status`, and in the receipt if the gain is large enough.
    let count = text.matches(storm).count();
    assert!([1, 2].contains(&count), "{text}");
    assert_eq!(text.matches("would save less than 0.1 s").count(), 2 - count, "{text}");
    assert_eq!(plain_files(&site).len(), 200);
    let script = script.replace("/d\"", "/e\"");
    let output = site.job(1, &["--aggregate=auto"], &script).exits(0);
    assert_contains(&shown(&output), &["; 72 are packed"]);
    assert_eq!(plain_files(&site).len(), 328);
}

/// S38a.
#[test]
fn packed_files_survive_agents_that_are_killed() {
    for victim in [0, 1] {
        let (site, job) = new_job(&format!("packed-{victim}"));
        let wrote = site.plain().join("wrote");
        let script = format!(
            r#"cd "$TAMEIKE_CACHE"; mkdir d; for i in $(seq 300); do seq $i > d/f$i; done
               mv d/f1 d/moved; rm d/f2; seq 7 > d/f3; mkdir e; mv d/f4 e/f4; mv e e2
               touch {}; exec sleep 600"#,
            wrote.display()
        );
        let options = ["--job", &job.name, "--aggregate"];
        let running = Background::start_until(&mut site.job(2, &options, &script), &wrote);
        assert!(job.kill_agent(victim));
        let output = running.output();
        assert_ne!(output.status.code(), Some(0), "{}", shown(&output));
        let recovered = site.tameike(&["recover", "--job", &job.name]).exits(0);
        let found = pack(
            &site,
            2,
            r#"cd "$TAMEIKE_CACHE"; test ! -e d/f1; test ! -e d/f2; test "$(seq 1)" = "$(cat d/moved)"
               test "$(seq 7)" = "$(cat d/f3)"; test "$(seq 4)" = "$(cat e2/f4)"; test ! -e e
               for i in $(seq 5 300); do seq $i | cmp - d/f$i; done; ls d | wc -l"#,
        );
        assert_eq!(found, "298\n", "{}", shown(&recovered));
        verify(&site);
    }
}

/// Programs that create, rename and remove small files, like version control and archives.
#[test]
fn churn_gives_the_same_files_as_elsewhere() {
    let site = Site::new();
    let churn = r#"for round in 1 2 3; do for i in $(seq 60); do
                       dir=objects/$((i % 7)); mkdir -p $dir; seq $((i * round)) > $dir/tmp_$i
                       ln $dir/tmp_$i $dir/$i 2>/dev/null && rm $dir/tmp_$i || mv -f $dir/tmp_$i $dir/$i
                   done; rm objects/3/3; mv objects/5 objects/moved-$round; done
                   tar cf all.tar objects; mkdir out; tar xf all.tar -C out; rm -r objects/1; mv out/objects/1 objects/1; rm all.tar
                   find . -type f | LC_ALL=C sort | xargs cksum"#;
    let plain = succeed(Command::new("sh").args(["-euc", churn]).current_dir(site.plain()));
    let packed = pack(&site, 2, &format!(r#"cd "$TAMEIKE_CACHE"; {churn}"#));
    assert_eq!(packed, plain);
    verify(&site);
    let later = r#"cd "$TAMEIKE_CACHE"; find . -type f | LC_ALL=C sort | xargs cksum"#;
    assert_eq!(succeed(&mut site.job(2, &[], later)), plain);
}

/// S43b.
///
/// In a shared directory that other users can write to, another user creates the container's directory first, world-writable, or
/// as a link. Private packed files were readable there, or were written elsewhere.
#[test]
fn a_container_directory_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    for is_link in [false, true] {
        let site = Site::new();
        let elsewhere = site.base().with_file_name("elsewhere");
        fs::create_dir(&elsewhere).expect("made");
        if is_link {
            symlink(&elsewhere, container(&site)).expect("linked");
        } else {
            fs::create_dir(container(&site)).expect("made");
            chown(container(&site), Some(65_533), Some(65_533)).expect("chown");
        }
        let script = r#"umask 077; echo secret > "$TAMEIKE_CACHE/private""#;
        let output = site.job(1, &["--aggregate"], script).output().expect("it starts");
        let text = shown(&output);
        assert!(!output.status.success() && text.contains(".tameike-packed"), "{text}");
        assert_eq!(files_below(&elsewhere), Vec::<PathBuf>::new());
        if !is_link {
            assert_eq!(files_below(&container(&site)), Vec::<PathBuf>::new());
        }
    }
}
