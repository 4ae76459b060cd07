"""One definition of DeepSeek-V4.1-Flash in torch, calling ops.

A forward is a function of token ids and a request's state; the state lives in buffers that the caller owns.
"""
