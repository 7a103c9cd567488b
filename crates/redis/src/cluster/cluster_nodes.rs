//! Parses the reply to `CLUSTER NODES`: how one node describes all nodes of its cluster.
//!
//! In: the text of the reply. Out: every node with its address, its role, its slots and its config epoch.

use crate::url::Address;

/// All nodes, as one of them describes them.
pub(super) struct View(pub(super) Vec<NodeLine>);

/// One node, as another node describes it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NodeLine {
    pub(super) address: Address,
    /// It is a master, and its flags contain none of `fail`, `noaddr` and `handshake`.
    pub(super) serves: bool,
    /// The config epoch: it rises with every failover, and with every slot that the node imports.
    pub(super) epoch: u64,
    /// First and last slot of each range.
    pub(super) slots: Vec<(u16, u16)>,
}

impl View {
    /// Parses the reply of the node at `asked`; `None` if it is not a reply to `CLUSTER NODES`.
    pub(super) fn parse(asked: &Address, text: &str, by_name: bool) -> Option<Self> {
        let lines = text.lines().filter(|line| !line.is_empty());
        let seen = lines.map(|line| NodeLine::parse(asked, line, by_name));
        // Skip nodes without an address: the other nodes have lost contact with them.
        let seen: Vec<_> = seen.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
        (!seen.is_empty()).then_some(View(seen))
    }
}

impl NodeLine {
    /// `id ip:port@bus[,host[,more…]] flags master ping pong epoch link slot slot…`
    fn parse(asked: &Address, line: &str, by_name: bool) -> Option<Option<Self>> {
        let mut words = line.split(' ');
        let (_, endpoint) = (words.next()?, words.next()?);
        let flags: Vec<_> = words.next()?.split(',').collect();
        let epoch = words.nth(3)?.parse().ok()?;
        words.next()?;
        let Some(address) = address(asked, endpoint, by_name) else { return Some(None) };
        // Slots that are being migrated are listed in brackets.
        let slots = words.filter(|word| !word.starts_with('[')).map(range);
        let slots = slots.collect::<Option<Vec<_>>>()?;
        let dead = ["fail", "noaddr", "handshake"].iter().any(|flag| flags.contains(flag));
        let serves = flags.contains(&"master") && !dead;
        Some(Some(NodeLine { address, serves, epoch, slots }))
    }
}

/// The host name if `by_name` is set (TLS checks certificates against names) and the node has one; else the
/// IP.
fn address(asked: &Address, endpoint: &str, by_name: bool) -> Option<Address> {
    let mut parts = endpoint.split(',');
    let (host, port) = parts.next()?.split('@').next()?.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let name = parts.next().filter(|name| by_name && !name.is_empty() && !name.contains('='));
    Some(asked.beside(name.unwrap_or(host), port))
}

fn range(word: &str) -> Option<(u16, u16)> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
07c3 127.0.0.1:30004@31004,hostname4 slave e7d1 0 1426238317239 4 connected
67ed 127.0.0.1:30002@31002,hostname2,shard-id=1 master - 0 1426238316232 2 connected 5461-10922 [7->-e7d1]
292f :30003@31003 myself,master - 0 1426238318243 3 connected 10923-16382 16383
6ec2 127.0.0.1:30005@31005 master,fail - 1 2 1 disconnected 0-5460
aaaa :0@0 master,noaddr - 1 2 1 disconnected
";

    fn asked() -> Address {
        Address::Tcp("h".into(), 30_003)
    }

    /// Roles, epochs, slots and addresses are parsed. A node may omit its own host: the address in use
    /// counts.
    #[test]
    fn nodes_are_read() {
        let view = View::parse(&asked(), TEXT, false).unwrap();
        let shown: Vec<_> = view.0.iter().map(|seen| seen.address.to_string()).collect();
        assert_eq!(shown, ["127.0.0.1:30004", "127.0.0.1:30002", "h:30003", "127.0.0.1:30005"]);
        let serve: Vec<_> = view.0.iter().map(|seen| seen.serves).collect();
        assert_eq!(serve, [false, true, true, false]);
        assert_eq!((view.0[1].epoch, &view.0[1].slots[..]), (2, &[(5_461, 10_922)][..]));
        assert_eq!(view.0[2].slots, [(10_923, 16_382), (16_383, 16_383)]);
    }

    /// With `by_name`, a node is known by its host name if it has one.
    #[test]
    fn nodes_by_name() {
        let view = View::parse(&asked(), TEXT, true).unwrap();
        assert_eq!(view.0[1].address.to_string(), "hostname2:30002");
        assert_eq!(view.0[3].address.to_string(), "127.0.0.1:30005");
    }

    /// Text of any other form is rejected.
    #[test]
    fn other_words() {
        for text in ["", "OK", "a b c", "07c3 127.0.0.1:1@2 master - 0 0 x connected"] {
            assert!(View::parse(&asked(), text, false).is_none(), "{text}");
        }
    }
}
