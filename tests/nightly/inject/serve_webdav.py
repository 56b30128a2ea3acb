"""Serve a folder by WebDAV, read-only, as one who may not read all: serve_webdav.py PORT FOLDER NAME PASSWORD."""

import os
import sys

from cheroot.wsgi import Server
from wsgidav.fs_dav_provider import FilesystemProvider
from wsgidav.wsgidav_app import WsgiDAVApp

PORT, FOLDER, NAME, PASSWORD = sys.argv[1:]
app = WsgiDAVApp(
    {
        "provider_mapping": {"/": FilesystemProvider(FOLDER, readonly=True)},
        "simple_dc": {"user_mapping": {"*": {NAME: {"password": PASSWORD}}}},
        "http_authenticator": {"accept_basic": True, "accept_digest": False, "default_to_digest": False},
        "logging": {"enable": False},
        "verbose": 0,
    }
)
server = Server(("127.0.0.1", int(PORT)), app)
server.prepare()
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
server.serve()
