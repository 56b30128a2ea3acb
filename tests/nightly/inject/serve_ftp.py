"""Serve a folder by FTP, read-only, as one who may not read all: serve_ftp.py PORT FOLDER NAME PASSWORD."""

import os
import sys

from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import ThreadedFTPServer

PORT, FOLDER, NAME, PASSWORD = sys.argv[1:]


class Handler(FTPHandler):
    authorizer = DummyAuthorizer()


Handler.authorizer.add_user(NAME, PASSWORD, FOLDER, perm="elr")
server = ThreadedFTPServer(("127.0.0.1", int(PORT)), Handler)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
server.serve_forever()
