"""Figures as a picture: a panel for each group, a bar for each figure, on an axis of decades: equal distances are equal ratios."""

import math
from html import escape

COLOURS = ["#888888", "#1f77b4", "#2ca02c", "#d62728", "#9467bd", "#ff7f0e", "#17becf", "#8c564b"]
WIDTH, LABELS, VALUES, LINE, HEAD = 720, 200, 90, 22, 34


def bars(title, unit, groups):
    """`groups` gives for each panel its figures by name."""
    figures = [figure for group in groups.values() for figure in group.values()]
    low, high = math.floor(math.log10(min(figures))), math.ceil(math.log10(max(figures)))
    high = max(high, low + 1)
    at = lambda figure: LABELS + (math.log10(figure) - low) / (high - low) * (WIDTH - LABELS - VALUES)
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    lines, top = [f'<text x="12" y="24" font-size="15">{escape(title)}</text>'], HEAD
    for panel, group in groups.items():
        bottom = top + HEAD + len(group) * LINE
        lines.append(f'<text x="12" y="{top + 22}" font-weight="bold">{escape(panel)} [{escape(unit)}]</text>')
        for decade in range(low, high + 1):
            x = at(10.0**decade)
            lines.append(f'<line x1="{x:.1f}" y1="{top + HEAD - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#cccccc"/>')
            lines.append(f'<text x="{x:.1f}" y="{bottom + 12}" font-size="9" fill="#666666" text-anchor="middle">{10.0**decade:,g}</text>')
        for number, (name, figure) in enumerate(group.items()):
            y = top + HEAD + number * LINE
            colour = COLOURS[names.index(name) % len(COLOURS)]
            lines.append(f'<text x="{LABELS - 8}" y="{y + 12}" text-anchor="end">{escape(name)}</text>')
            lines.append(f'<rect x="{LABELS}" y="{y}" width="{max(at(figure) - LABELS, 1):.1f}" height="{LINE - 6}" fill="{colour}"/>')
            lines.append(f'<text x="{at(figure) + 6:.1f}" y="{y + 12}">{figure:,.{0 if figure >= 100 else 2}f}</text>')
        top = bottom + 18
    style = f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}" font-family="sans-serif" font-size="12"'
    body = "\n".join(lines)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {style}>\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
