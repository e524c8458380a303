//! A sheet of characters to draw on.

/// Grows as it is drawn on; what lies outside [`Canvas::MOST`] is not drawn.
#[derive(Default)]
pub(super) struct Canvas {
    rows: Vec<Vec<char>>,
}

impl Canvas {
    /// Most rows and most columns.
    const MOST: usize = 4096;

    pub(super) fn put(&mut self, x: usize, y: usize, mark: char) {
        if x >= Self::MOST || y >= Self::MOST {
            return;
        }
        if self.rows.len() <= y {
            self.rows.resize(y + 1, Vec::new());
        }
        if let Some(row) = self.rows.get_mut(y) {
            if row.len() <= x {
                row.resize(x + 1, ' ');
            }
            if let Some(cell) = row.get_mut(x) {
                *cell = mark;
            }
        }
    }

    pub(super) fn write(&mut self, x: usize, y: usize, text: &str) {
        for (offset, mark) in text.chars().enumerate() {
            self.put(x + offset, y, mark);
        }
    }

    /// A box with lines of text in it.
    pub(super) fn frame(
        &mut self,
        x: usize,
        y: usize,
        width: usize,
        height: usize,
        lines: &[String],
    ) {
        let (right, bottom) = (x + width.max(2) - 1, y + height.max(2) - 1);
        for column in x..=right {
            self.put(column, y, '─');
            self.put(column, bottom, '─');
        }
        for row in y..=bottom {
            self.put(x, row, '│');
            self.put(right, row, '│');
        }
        for (column, row, mark) in
            [(x, y, '┌'), (right, y, '┐'), (x, bottom, '└'), (right, bottom, '┘')]
        {
            self.put(column, row, mark);
        }
        for (offset, line) in lines.iter().enumerate() {
            self.write(x + 2, y + 1 + offset, line);
        }
    }

    /// A cable from column `from` up to but not including `to`, with the names of the ports at its ends.
    pub(super) fn across(
        &mut self,
        from: usize,
        to: usize,
        y: usize,
        near: &str,
        far: &str,
        rails: usize,
    ) {
        let mark = if rails > 1 { '═' } else { '─' };
        let (near_end, far_start) =
            (from + near.chars().count() + 2, to.saturating_sub(far.chars().count() + 2));
        for column in near_end..far_start {
            self.put(column, y, mark);
        }
        self.write(from + 1, y, near);
        self.write(far_start + 1, y, far);
    }

    /// A cable down from row `from` up to but not including `to`, with the names of the ports beside its ends.
    pub(super) fn down(
        &mut self,
        x: usize,
        from: usize,
        to: usize,
        near: &str,
        far: &str,
        rails: usize,
    ) {
        for row in from..to {
            self.put(x, row, if rails > 1 { '║' } else { '│' });
        }
        self.write(x + 2, from, near);
        self.write(x + 2, to.saturating_sub(1), far);
    }

    pub(super) fn print(&self, out: &mut String) {
        for row in &self.rows {
            let line: String = row.iter().collect();
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
}
