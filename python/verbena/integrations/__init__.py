"""Verbena's collectives in inference engines, in the shapes that those take: verbena.integrations.vllm, .sglang. Each can be
imported without its engine."""
