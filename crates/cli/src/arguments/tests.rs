//! The definition is consistent, and command lines are parsed as documented.

use super::*;
use clap::CommandFactory;
use tameike_agent::control::FabricChoice;

#[test]
fn the_definition_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn a_run_is_parsed() {
    let line = "tameike run --local 4 --fabric tcp --cores 0,2-3 --shared out --capacity shared=1G -- sh -c true --not-ours";
    let cli = Cli::try_parse_from(line.split(' ')).expect("a good line");
    let Action::Run(run) = cli.command else { panic!("not a run") };
    assert_eq!((run.job.local, run.job.fabric), (Some(4), Some(FabricChoice::Tcp)));
    assert_eq!(run.job.capacity.expect("given").views[1], Some(1 << 30));
    assert_eq!(run.command, ["sh", "-c", "true", "--not-ours"]);
}

/// `tameike run true` was refused as having an unexpected argument.
#[test]
fn a_command_needs_no_dashes_before_it() {
    for line in ["run --local 2 -- ls -l --all -- x", "run --local 2 ls -l --all -- x"] {
        let words = std::iter::once("tameike").chain(line.split(' '));
        let Action::Run(run) = Cli::try_parse_from(words).expect(line).command else { panic!("{line}") };
        assert_eq!((run.job.local, run.command.len()), (Some(2), 5), "{line}");
    }
    let words = "tameike exec --node 1 hostname --all".split(' ');
    let Action::Exec(exec) = Cli::try_parse_from(words).expect("a good line").command else {
        panic!("no exec")
    };
    assert_eq!((exec.node, exec.all, exec.command), (1, false, vec!["hostname".into(), "--all".into()]));
}

#[test]
fn bad_lines_are_refused() {
    for line in [
        "tameike run",
        "tameike run --no-such-option true",
        "tameike run --local 2 --hosts a -- true",
        "tameike run --capacity x -- true",
        "tameike run --capacity 10 -- true",
        "tameike run --job UPPER -- true",
        "tameike run --fabric udp -- true",
        "tameike run --cores 3-2 -- true",
        "tameike exec --all --node 2 -- true",
        "tameike check",
        "tameike check --replicas dir",
        "tameike check --replicas --repair",
        "tameike layout set sideways /tmp",
        "tameike exec -x NO=1 -x 2-3=x -- true",
    ] {
        assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
    }
}

#[test]
fn every_option_and_command_has_help() {
    fn check(command: &clap::Command) {
        if command.is_hide_set() {
            return;
        }
        assert!(command.get_about().is_some(), "{}", command.get_name());
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
        }
        command.get_subcommands().for_each(check);
    }
    check(&Cli::command());
}

#[test]
fn every_option_is_on_the_configuration_page() {
    let page = include_str!("../../../../docs/configuration.md");
    let command = Cli::command();
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        for option in command.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(page.contains(&format!("`--{option}")), "{} --{option}", command.get_name());
        }
    }
}
