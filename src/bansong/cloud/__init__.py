"""Remote files: objects of S3, Google Cloud Storage and Azure, and ``https`` URLs.

Other packages use local paths. ``remote_path`` represents a URL as a path; ``remote_files`` fetches private copies and
publishes finished files; ``object_store`` alone uses obstore (extra ``cloud``); ``store_errors`` explains failures.
"""
