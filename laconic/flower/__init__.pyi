from .client import client_app as client_app
from .server import server_app as server_app
