"""GGUF files, which llama.cpp reads: a model in one file, or in several parts; metadata, tokenizer and weights."""
