"""Values to payloads and back, exceptions to failures and back, codecs: ``from clew import converter``.

Owns: the public names. Never: a rule of its own (docs/reference/data-conversion.md has them).
"""

from __future__ import annotations

from clew.converter.composite import (
    AdvancedJSONEncoder,
    BinaryNullPayloadConverter,
    BinaryPlainPayloadConverter,
    CompositePayloadConverter,
    DefaultPayloadConverter,
    EncodingPayloadConverter,
    JSONPlainPayloadConverter,
    JSONTypeConverter,
)
from clew.converter.data_converter import (
    DataConverter,
    PayloadCodec,
    decode_arguments,
    default,
    from_stored_payloads,
    to_stored_payloads,
)
from clew.converter.failure import (
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    FailureConverter,
)
from clew.converter.payload_converter import PayloadConverter
from clew.converter.search_attributes import (
    decode_typed_search_attributes,
    encode_search_attribute,
    encode_search_attributes,
)
from clew.converter.signature import CallableSignature
from clew.model.payload import Payload

__all__ = [
    "AdvancedJSONEncoder",
    "BinaryNullPayloadConverter",
    "BinaryPlainPayloadConverter",
    "CallableSignature",
    "CompositePayloadConverter",
    "DataConverter",
    "DefaultFailureConverter",
    "DefaultFailureConverterWithEncodedAttributes",
    "DefaultPayloadConverter",
    "EncodingPayloadConverter",
    "FailureConverter",
    "JSONPlainPayloadConverter",
    "JSONTypeConverter",
    "Payload",
    "PayloadCodec",
    "PayloadConverter",
    "decode_arguments",
    "decode_typed_search_attributes",
    "default",
    "encode_search_attribute",
    "encode_search_attributes",
    "from_stored_payloads",
    "to_stored_payloads",
]
