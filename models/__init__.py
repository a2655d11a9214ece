"""Models of bags: plain arrays in, posterior out; knows nothing of geography."""
