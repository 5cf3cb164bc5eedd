//! Choice of the transport between agents, with its textual form.

use serde::{Deserialize, Serialize};
use tameike_fabric::ofi::Provider;

/// Transport between agents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FabricChoice {
    /// Shared memory within a host, TCP between hosts.
    #[default]
    Auto,
    /// Always TCP.
    Tcp,
    /// libfabric with a provider, or the first that the machine has.
    Ofi(Option<Provider>),
}

impl std::str::FromStr for FabricChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "tcp" => Ok(Self::Tcp),
            None if text == "ofi" => Ok(Self::Ofi(None)),
            Some(("ofi", provider)) => provider.parse().map(|provider| Self::Ofi(Some(provider))),
            _ => Err("a fabric is auto, tcp, ofi or ofi:PROVIDER".to_owned()),
        }
    }
}

impl std::fmt::Display for FabricChoice {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => out.write_str("auto"),
            Self::Tcp => out.write_str("tcp"),
            Self::Ofi(None) => out.write_str("ofi"),
            Self::Ofi(Some(provider)) => write!(out, "ofi:{provider}"),
        }
    }
}

impl TryFrom<String> for FabricChoice {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<FabricChoice> for String {
    fn from(choice: FabricChoice) -> Self {
        choice.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fabrics_round_trip_as_text() {
        for text in ["auto", "tcp", "ofi", "ofi:verbs", "ofi:shm"] {
            let choice: FabricChoice = text.parse().expect("a fabric");
            assert_eq!(choice.to_string(), text);
            assert_eq!(serde_json::to_string(&choice).expect("JSON"), format!("{text:?}"));
        }
        for bad in ["", "udp", "ofi:", "ofi:sockets", "tcp:verbs"] {
            assert!(bad.parse::<FabricChoice>().is_err(), "{bad:?}");
        }
    }
}
