"""Models of pydantic, under the names by which programs of the published SDK know them.

Owns: `pydantic_data_converter`. Never: conversion of its own: the built-in converters validate and dump models of
pydantic by themselves wherever they meet one, so these names only stand for them.
"""

from __future__ import annotations

from typing import Final

from clew.converter import DataConverter, DefaultPayloadConverter, JSONPlainPayloadConverter

PydanticJSONPlainPayloadConverter = JSONPlainPayloadConverter
PydanticPayloadConverter = DefaultPayloadConverter

pydantic_data_converter: Final = DataConverter.default
"""The default converter, which takes models of pydantic."""

__all__ = ["PydanticJSONPlainPayloadConverter", "PydanticPayloadConverter", "pydantic_data_converter"]
