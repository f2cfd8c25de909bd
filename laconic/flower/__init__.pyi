from .client import client_app as client_app
from .compress_mod import compress_mod as compress_mod
from .compressed import Compressed as Compressed
from .server import server_app as server_app
