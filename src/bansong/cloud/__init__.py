"""Files that are not on this machine: objects of S3, Google Cloud Storage and Azure, and what is at an ``https`` URL.

All else works with local paths. Here a URL becomes a private local copy with the version it has (``remote_files``), and
a finished local file becomes an object, if the object still is what it was.

- ``remote_path``: a URL as a path, so that it has a name, a suffix and a folder, and shows as it was given
- ``remote_files``: what readers and writers call: fetch, publish, list
- ``object_store``: the one module that knows obstore (extra ``cloud``); ``store_errors``: what went wrong, in sentences
- ``aws_profile``: keys of ``~/.aws``; ``web_file``: a GET over ``https``
"""
