"""From models to HTML: charts, templates, pages."""
