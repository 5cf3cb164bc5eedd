use super::*;

#[test]
fn secrets_round_trip_and_debug_hides_them() {
    let secret = Secret(std::array::from_fn(|index| index as u8 * 7));
    let line = serde_json::to_string(&secret).expect("secrets are JSON strings");
    assert_eq!(serde_json::from_str::<Secret>(&line).expect("as written"), secret);
    assert_eq!(format!("{secret:?}"), "Secret(..)");
    for bad in ["", "00", &"g".repeat(64), &"é".repeat(32)] {
        assert!(Secret::try_from(bad.to_owned()).is_err(), "{bad:?}");
    }
}

#[test]
fn commands_are_lines_of_json() {
    let command = AgentCommand { id: 7, request: AgentRequest::Drain { verify: true } };
    let line = serde_json::to_string(&command).expect("commands are JSON");
    assert_eq!(line, r#"{"id":7,"request":{"drain":{"verify":true}}}"#);
    assert_eq!(serde_json::from_str::<AgentCommand>(&line).expect("as written"), command);
}
