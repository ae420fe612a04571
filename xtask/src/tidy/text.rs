//! Rules about lines: width, and words that the style guide bans.

use super::Finding;
use super::source::SourceFile;

/// Width of a line in characters.
const COLUMNS: usize = 100;

/// Processes, files and values are "it" or "which": these words are for people.
const PEOPLE: [&str; 5] = ["nobody", "somebody", "whoever", "anybody", "everybody"];

/// Sentences start with their subject.
const OPENINGS: [&str; 5] = ["What ", "Who ", "Whoever ", "Nobody ", "Somebody "];

pub fn check(files: &[SourceFile], findings: &mut Vec<Finding>) {
    for file in files {
        // The rule's own words.
        if file.path == "xtask/src/tidy/text.rs" {
            continue;
        }
        let mut is_code_block = false;
        // Whether the next line of a comment continues a sentence.
        let mut is_inside = false;
        for (index, line) in file.text.lines().enumerate() {
            let mut add = |rule, message: String| {
                findings.push(Finding { rule, path: file.path.clone(), line: index + 1, message });
            };
            if !file.is_rust() && line.trim_start().starts_with("```") {
                is_code_block = !is_code_block;
            }
            // Tables of Markdown and quoted output cannot be wrapped.
            let is_free = !file.is_rust() && (line.starts_with('|') || is_code_block);
            let width = line.chars().count();
            if width > COLUMNS && !is_free && !line.contains("](http") {
                add("columns", format!("{width} columns: expected up to {COLUMNS}"));
            }
            let prose = match file.is_rust() {
                true => comment(line),
                false => (!is_code_block).then_some(line),
            };
            let is_start = !std::mem::take(&mut is_inside);
            let Some(prose) = prose else { continue };
            is_inside = prose.ends_with(|end: char| !".:!?`".contains(end));
            let opens = OPENINGS.iter().any(|word| prose.starts_with(word));
            if file.is_rust() && is_start && opens {
                add("opening", format!("a comment starts with '{}'", first_word(prose)));
            }
            let words = prose.split(|c: char| !c.is_alphabetic());
            for word in words.filter(|word| PEOPLE.contains(&word.to_lowercase().as_str())) {
                add("people", format!("'{word}' for a process or value"));
            }
        }
    }
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or(text)
}

/// Returns the text of a line that is a comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim_start())
}
