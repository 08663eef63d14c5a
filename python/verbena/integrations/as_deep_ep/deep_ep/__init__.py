"""Verbena's verbena.integrations.deep_ep under the name of DeepEP's module."""
import logging

from verbena.integrations import deep_ep as _verbena
from verbena.integrations.deep_ep import Buffer, Config, ElasticBuffer, EPHandle, EventHandle, EventOverlap

topk_idx_t = _verbena.topk_idx_t

__all__ = ["Buffer", "Config", "ElasticBuffer", "EPHandle", "EventHandle", "EventOverlap", "topk_idx_t"]

logging.getLogger("verbena").warning("the module deep_ep is Verbena's: %s. To use DeepEP, remove as_deep_ep from PYTHONPATH", __file__)
