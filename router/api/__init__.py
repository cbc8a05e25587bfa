"""The HTTP surface besides the data path: models, status, administration, the log's tail."""
