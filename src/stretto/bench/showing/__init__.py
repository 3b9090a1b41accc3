"""What was found, for people and other tools: tables, pictures, comparisons.

In: a document. Out: text, figures, verdicts. Never: a measurement.
"""
