//! What hyper accepts although RFC 9112 forbids it, or lets every recipient read it as it likes. A proxy before us may read
//! such a request in another way, so it is refused and its connection closed.

use baton_proto::Error;
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, Request, Response, Version};

use super::body::Body;

/// The refusal of a request that has more than one reading.
pub(super) fn refusal<B>(request: &Request<B>) -> Option<Response<Body>> {
    let why = if has_odd_coding(request.headers()) {
        "the only transfer-encoding that is understood here is chunked"
    } else if request.version() == Version::HTTP_11 && !has_one_host(request.headers()) {
        "the request needs one host header that names a host"
    } else {
        return None;
    };
    let mut response = super::error(&Error::bad_request(why));
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    Some(response)
}

/// Hyper looks for `chunked` at the end of the last line only (1.12, `proto/h1/role.rs`).
fn has_odd_coding(headers: &HeaderMap) -> bool {
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    let chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    codings.next().is_some_and(|first| !chunked(first)) || codings.next().is_some()
}

/// RFC 9112, section 3.2. An empty value is one: the target has no authority then.
fn has_one_host(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    let named = Authority::try_from(host.as_bytes());
    host.is_empty() || named.is_ok_and(|authority| !authority.as_str().contains('@'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(version: Version, headers: &[(&str, &str)]) -> bool {
        let mut request = Request::builder().version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        refusal(&request.body(()).unwrap()).is_some()
    }

    #[test]
    fn one_host_and_one_coding() {
        for good in [
            &[("host", "a")][..],
            &[("host", "a:80")],
            &[("host", "[::1]:80")],
            &[("host", "")],
            &[("host", "a"), ("transfer-encoding", "Chunked")],
        ] {
            assert!(!refused(Version::HTTP_11, good), "{good:?}");
        }
        for bad in [
            &[][..],
            &[("host", "a"), ("host", "a")],
            &[("host", "a b")],
            &[("host", "a/b")],
            &[("host", "me@a")],
            &[("host", "a"), ("transfer-encoding", "gzip, chunked")],
            &[
                ("host", "a"),
                ("transfer-encoding", "x"),
                ("transfer-encoding", "chunked"),
            ],
        ] {
            assert!(refused(Version::HTTP_11, bad), "{bad:?}");
        }
        assert!(!refused(Version::HTTP_10, &[]));
    }
}
