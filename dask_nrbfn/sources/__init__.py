"""Source formats, each read as a stream of blocks, whose size and types are known before."""
