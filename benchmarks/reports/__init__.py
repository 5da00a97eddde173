"""What runs say: ratios, where an epoch spends its time, Markdown, JSON and plots."""
