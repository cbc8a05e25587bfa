"""How much memory a model takes: estimated from its file, measured by NVML, and what that lets fit together.

`header` reads a GGUF file's head, `geometry` says which layers keep what per token, `estimate` adds up weights, cache
and buffers, `measured` reads the log, `cram` sizes the prompt cache, `fit` answers for `llama-router fit`.

Nothing of this is read by the scheduler: what fits together is what the configuration says.
"""
