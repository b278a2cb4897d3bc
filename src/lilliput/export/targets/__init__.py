"""The files that Lilliput writes and executes, one file here for each; ``table`` lists them."""
