"""The pipeline: configuration, bag store, engine, prediction, evaluation and the command line."""
