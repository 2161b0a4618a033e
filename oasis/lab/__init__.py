"""The experiment bench: settings, streams, runs, their records, comparisons and reports.

It stands on `oasis.train`, which never imports it.
"""
