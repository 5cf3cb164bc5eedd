//! `tameike bench net`: agents of real jobs measure their network.

use crate::support::{Run, Site, assert_contains, succeed};

#[test]
fn agents_of_a_running_job_measure_with_each_other() {
    let site = Site::new();
    let script = "tameike bench net --nodes 2,0 --sizes 1,5000,1MiB --time 5
         tameike bench net --nodes 0,1 --sizes 8,64 --time 5 --csv
         tameike bench net --nodes 1,2 --sizes 64KiB --time 5 --json
         tameike bench net --nodes 0,3 2>&1 && exit 1 || test $? = 71
         tameike bench net --nodes 1,1 2>&1 && exit 1 || test $? = 2";
    let text = succeed(&mut site.job(3, &["--memory", "64MiB"], script));
    let table: Vec<_> = text.lines().take(5).collect();
    assert!(
        table[0].contains("fabric auto: node 2 (localhost) with node 0 (localhost), medians of 5"),
        "{text}"
    );
    for (line, size) in table[2..].iter().zip(["1 B", "4.88 KiB", "1.00 MiB"]) {
        let figures = line.trim().strip_prefix(size).unwrap_or_else(|| panic!("{size} in {text}"));
        let figures: Vec<f64> =
            figures.split_whitespace().map(|one| one.parse().expect("a figure")).collect();
        // Two times, and rates; the rate of single bytes may round to zero.
        let found = if size == "1 B" { &figures[..2] } else { &figures };
        assert!(figures.len() == 6 && found.iter().all(|figure| *figure > 0.0), "{line}");
    }
    assert_eq!(text.lines().filter(|line| line.contains(",auto,0,1,")).count(), 2 * 5, "{text}");
    assert_eq!(text.matches(r#""quantity": "both-ways""#).count(), 1, "{text}");
    assert_contains(&text, &["the job has no node 3: it has nodes 0 to 2"]);
}

#[test]
fn without_a_running_job_one_is_started_for_each_fabric() {
    let site = Site::new();
    let mut command =
        site.tameike(&["bench", "net", "--fabric", "tcp,auto", "--sizes", "1,64KiB", "--time", "5"]);
    let text = succeed(&mut command);
    let heads: Vec<_> = text.lines().filter(|line| line.starts_with("job ")).collect();
    assert!(
        heads.len() == 2 && heads[0].contains("fabric tcp") && heads[1].contains("fabric auto"),
        "{text}"
    );
    site.tameike(&["bench", "net", "--fabric", "pigeon"]).exits(71);
}
