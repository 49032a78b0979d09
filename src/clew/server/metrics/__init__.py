"""What the server counts and measures, in the text format of Prometheus at ``/metrics``."""
