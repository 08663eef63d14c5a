"""Verbena's collectives for inference engines, with the classes and hooks that each engine expects:
verbena.integrations.vllm, .sglang. Each can be imported without its engine."""
