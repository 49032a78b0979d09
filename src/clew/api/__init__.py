"""Paths of the published SDK's message classes, as far as programs import them for codecs and converters."""
