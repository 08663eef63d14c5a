"""Verbena's collectives and mixture of experts for inference engines. The modules vllm and sglang have the classes and hooks that these
engines expect. The modules deep_ep, mori and flashinfer have the interfaces of the libraries with these names. All these modules can be
imported without the engine or library."""
