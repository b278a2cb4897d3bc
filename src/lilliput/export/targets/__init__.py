"""The file formats that Lilliput writes and executes, one module each; ``table`` lists them."""
