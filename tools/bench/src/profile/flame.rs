//! A flame graph: a box per function, as wide as its share of the samples, on top of the one that called it.
//!
//! Boxes of this project are orange, other Rust is yellow, the kernel and libraries of C are blue. A browser shows
//! the full name and share of a box.

use super::stacks::Frame;
use crate::report::{escaped, svg_page};

const WIDTH: f64 = 1400.0;
const MARGIN: f64 = 10.0;
const HEAD: f64 = 40.0;
const ROW: f64 = 15.0;
/// Narrower boxes are left out.
const NARROWEST: f64 = 0.7;
const LETTER: f64 = 6.0;

/// The picture of `root`.
pub fn svg(title: &str, root: &Frame) -> String {
    let height = HEAD + root.depth() as f64 * ROW + MARGIN;
    let title = format!("{} ({} samples)", escaped(title), root.samples);
    let mut text = svg_page(WIDTH, height, "font-family=\"monospace\" font-size=\"10\"", &title);
    let scale = (WIDTH - 2.0 * MARGIN) / root.samples.max(1) as f64;
    let picture = Picture { scale, all: root.samples };
    picture.draw(root, MARGIN, height - MARGIN - ROW, &mut text);
    text + "</svg>\n"
}

/// The scale of all boxes.
struct Picture {
    /// Width of a sample.
    scale: f64,
    all: u64,
}

impl Picture {
    /// Draws what `frame` called, from `left` on, in the row at `top` and those above.
    fn draw(&self, frame: &Frame, left: f64, top: f64, text: &mut String) {
        let mut left = left;
        for (name, callee) in &frame.callees {
            let width = callee.samples as f64 * self.scale;
            if width >= NARROWEST {
                *text += &self.box_of(name, callee.samples, left, top, width);
                self.draw(callee, left, top - ROW, text);
            }
            left += width;
        }
    }

    fn box_of(&self, name: &str, samples: u64, left: f64, top: f64, width: f64) -> String {
        let letters = (width / LETTER) as usize;
        let shown: String = if letters < 3 { String::new() } else { name.chars().take(letters).collect() };
        format!(
            "<g><title>{} ({:.1} %)</title><rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{:.1}\" \
             fill=\"{}\" stroke=\"white\" stroke-width=\"0.5\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text></g>\n",
            escaped(name),
            samples as f64 * 100.0 / self.all as f64,
            ROW - 1.0,
            colour(name),
            left + 2.0,
            top + ROW - 4.0,
            escaped(&shown),
        )
    }
}

fn colour(name: &str) -> &'static str {
    if name.contains("tameike") {
        "#e69f00"
    } else if name.contains("::") {
        "#f0e442"
    } else {
        "#56b4e9"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::stacks::tests::SCRIPT;

    #[test]
    fn every_function_has_a_box_of_its_share() {
        let picture = svg("<title>", &Frame::of_script(SCRIPT));
        assert!(picture.contains("&lt;title&gt; (3 samples)") && picture.ends_with("</svg>\n"));
        assert_eq!(picture.matches("<rect ").count(), 1 + 6, "{picture}");
        assert!(picture.contains("<title>serve (66.7 %)</title>"), "{picture}");
        assert!(picture.contains("read&lt;u8, alloc::Vec&lt;u8&gt;&gt; (33.3 %)"), "{picture}");
        assert!(svg("nothing", &Frame::default()).contains("(0 samples)"));
    }
}
