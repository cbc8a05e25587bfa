"""Figures as Plotly's JSON: pure functions of rows. The page gives them its colours; see static/lib/charts.js."""
