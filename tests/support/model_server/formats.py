"""The wire formats that the model server speaks. A format is one file and one row here."""

from support.model_server.chat_completions import ChatCompletions
from support.model_server.exchange import WireFormat
from support.model_server.generate_content import GenerateContent
from support.model_server.messages import Messages
from support.model_server.responses import Responses

FORMATS: tuple[WireFormat, ...] = (ChatCompletions(), Messages(), Responses(), GenerateContent())
