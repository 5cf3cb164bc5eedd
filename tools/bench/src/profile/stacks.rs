//! Merges the stacks that `perf script` prints into a tree.

use std::collections::BTreeMap;

/// A function in the place where it was called from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Samples in it and in what it called.
    pub samples: u64,
    /// What it called.
    pub callees: BTreeMap<String, Frame>,
}

fn most_first(samples: impl IntoIterator<Item = (String, u64)>) -> Vec<(String, u64)> {
    let mut samples: Vec<_> = samples.into_iter().collect();
    samples.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    samples
}

impl Frame {
    /// The tree of all samples in `script`: a paragraph each, of which the first line names the thread and each
    /// further line holds an address and a function, the innermost first.
    pub fn of_script(script: &str) -> Self {
        let mut root = Self::default();
        for paragraph in script.split("\n\n") {
            let mut lines = paragraph.lines().filter(|line| !line.trim().is_empty());
            let Some(thread) = lines.next() else { continue };
            let functions: Vec<&str> = lines.map(function).collect();
            root.add(std::iter::once(thread.trim()).chain(functions.into_iter().rev()));
        }
        root
    }

    fn add<'a>(&mut self, stack: impl Iterator<Item = &'a str>) {
        self.samples += 1;
        let mut frame = self;
        for name in stack {
            frame = frame.callees.entry(name.to_owned()).or_default();
            frame.samples += 1;
        }
    }

    /// The largest number of frames of a stack.
    pub fn depth(&self) -> usize {
        self.callees.values().map(|callee| 1 + callee.depth()).max().unwrap_or(0)
    }

    /// Samples in each function itself, wherever it was called from, the most first.
    pub fn by_function(&self) -> Vec<(String, u64)> {
        let mut samples = BTreeMap::new();
        self.count_own(&mut samples);
        most_first(samples)
    }

    /// Samples in threads of each name, the most first.
    pub fn by_thread(&self) -> Vec<(String, u64)> {
        most_first(self.callees.iter().map(|(name, thread)| (name.clone(), thread.samples)))
    }

    fn count_own(&self, samples: &mut BTreeMap<String, u64>) {
        for (name, callee) in &self.callees {
            let own = callee.samples - callee.callees.values().map(|inner| inner.samples).sum::<u64>();
            if own > 0 {
                *samples.entry(name.clone()).or_default() += own;
            }
            callee.count_own(samples);
        }
    }
}

/// The function of a line of address and function.
fn function(line: &str) -> &str {
    line.trim().split_once(' ').map_or("[unknown]", |(_, function)| function.trim())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Two samples of one thread and one of another.
    pub const SCRIPT: &str = "agent \n\t 1f2a read<u8, alloc::Vec<u8>>\n\t 22 serve\n\t 23 main\n\n\
                              agent \n\t 22 serve\n\t 23 main\n\nfuse \n\t 9 [unknown]\n\n";

    #[test]
    fn stacks_with_the_same_beginning_share_it() {
        let root = Frame::of_script(SCRIPT);
        assert_eq!((root.samples, root.depth()), (3, 4));
        let serve = &root.callees["agent"].callees["main"].callees["serve"];
        assert_eq!((serve.samples, serve.callees.len()), (2, 1));
        assert_eq!(serve.callees["read<u8, alloc::Vec<u8>>"].samples, 1);
        let own = root.by_function();
        assert_eq!(own.iter().map(|(_, count)| count).sum::<u64>(), 3);
        assert!(own.contains(&("serve".to_owned(), 1)) && !own.iter().any(|(name, _)| name == "main"));
    }
}
