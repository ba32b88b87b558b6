"""Choosing tokens: the settings of a request, checked and brought to the native sampler."""
