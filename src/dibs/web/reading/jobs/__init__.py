"""Page models of single jobs: an id with its story, and the form that enqueues a job."""
