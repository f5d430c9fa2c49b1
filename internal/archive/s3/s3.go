// Package s3 stores an archive in a bucket of an S3-compatible server.
package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/weir-social/weir/internal/archive"
)

// Config is a bucket and how to reach it.
type Config struct {
	Endpoint  string // an http:// or https:// URL; empty: Amazon's
	Region    string // empty: it is looked up
	Bucket    string
	Prefix    string // of the names of objects; may be empty
	Transport http.RoundTripper
	// Credentials are the credentials to use. nil: those in AWS_ACCESS_KEY_ID and
	// AWS_SECRET_ACCESS_KEY, in ~/.aws/credentials, or those of the machine.
	Credentials *credentials.Credentials
}

// Store is a bucket.
type Store struct {
	client *minio.Client
	bucket string
	prefix string
}

// New returns the store in a bucket.
func New(cfg Config) (*Store, error) {
	endpoint := cfg.Endpoint
	if endpoint == "" {
		endpoint = "https://s3.amazonaws.com"
	}
	u, err := url.Parse(endpoint)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return nil, fmt.Errorf("%q is not the address of an S3 server: expected for example https://s3.example", endpoint)
	}
	if cfg.Bucket == "" {
		return nil, errors.New("the bucket has no name")
	}
	keys := cfg.Credentials
	if keys == nil {
		keys = credentials.NewChainCredentials(
			[]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{}})
	}
	// The hash of the content is part of the request's signature. Checksums in trailers
	// are not: some servers refuse them.
	client, err := minio.New(u.Host, &minio.Options{
		Creds: keys, Secure: u.Scheme == "https", Region: cfg.Region, Transport: cfg.Transport, MaxRetries: 3,
	})
	if err != nil {
		return nil, fmt.Errorf("set up the client of the bucket: %w", err)
	}
	prefix := strings.Trim(cfg.Prefix, "/")
	if prefix != "" {
		prefix += "/"
	}
	return &Store{client: client, bucket: cfg.Bucket, prefix: prefix}, nil
}

// EndpointFromEnv returns the endpoint in the usual environment variable; empty:
// Amazon's.
func EndpointFromEnv() string { return os.Getenv("AWS_ENDPOINT_URL") }

// String returns the bucket and the prefix.
func (s *Store) String() string {
	return strings.TrimSuffix("s3://"+s.bucket+"/"+s.prefix, "/")
}

// Put stores an object in one request. The server refuses it if the object exists.
func (s *Store) Put(ctx context.Context, name string, content io.ReadSeeker, size int64) error {
	opts := minio.PutObjectOptions{ContentType: "application/octet-stream", DisableMultipart: true}
	opts.SetMatchETagExcept("*")
	_, err := s.client.PutObject(ctx, s.bucket, s.prefix+name, content, size, opts)
	switch minio.ToErrorResponse(err).StatusCode {
	case http.StatusPreconditionFailed, http.StatusConflict:
		return archive.ErrExists
	}
	return s.failed("write", name, err)
}

// failed returns the error of an operation, nil if there is none.
func (s *Store) failed(what, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case minio.ToErrorResponse(err).Code == minio.NoSuchKey:
		return fmt.Errorf("%s %s: %w", what, name, archive.ErrNotFound)
	}
	return fmt.Errorf("%s %s in %s: %w", what, name, s, err)
}

// Get opens an object.
func (s *Store) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	core := minio.Core{Client: s.client}
	content, _, _, err := core.GetObject(ctx, s.bucket, s.prefix+name, minio.GetObjectOptions{})
	if err != nil {
		return nil, s.failed("read", name, err)
	}
	return content, nil
}

// Stat returns the size of an object.
func (s *Store) Stat(ctx context.Context, name string) (archive.Object, error) {
	info, err := s.client.StatObject(ctx, s.bucket, s.prefix+name, minio.StatObjectOptions{})
	if err != nil {
		return archive.Object{}, s.failed("look up", name, err)
	}
	return archive.Object{Name: name, Size: info.Size, Modified: info.LastModified}, nil
}

// List yields the objects in the order of their names.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[archive.Object, error] {
	return func(yield func(archive.Object, error) bool) {
		for o := range s.client.ListObjectsIter(ctx, s.bucket, minio.ListObjectsOptions{Prefix: s.prefix + prefix, Recursive: true}) {
			if o.Err != nil {
				yield(archive.Object{}, fmt.Errorf("list %s: %w", s, o.Err))
				return
			}
			if !yield(archive.Object{Name: strings.TrimPrefix(o.Key, s.prefix), Size: o.Size, Modified: o.LastModified}, nil) {
				return
			}
		}
	}
}

// Delete deletes an object.
func (s *Store) Delete(ctx context.Context, name string) error {
	return s.failed("delete", name, s.client.RemoveObject(ctx, s.bucket, s.prefix+name, minio.RemoveObjectOptions{}))
}
